// run.device: what a run and doctor do on a GPU.
#include <cmath>
#include <csignal>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "tests/e2e/emulated_gpu.hpp"

namespace llmtrain {

namespace {

// Of the machine, up to a line with this text: what it measures then takes its time.
std::string what_doctor_found(const Workspace& here, const std::string& last) {
  return here
      .call({"doctor", "--quick", "--threads", "1", "--output", "p.json"},
            {.signal = SIGKILL, .signal_after = last})
      .output;
}

}  // namespace

TEST_CASE("a run on an emulated GPU trains, evaluates, saves and resumes like one on the CPU" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const auto compare = [&](const Workspace& a, const Workspace& b, double tolerance) {
    for (const char* key : {"train/loss", "eval/loss", "train/grad_norm"}) {
      CAPTURE(key);
      const std::vector<double> x = values_of(a, key), y = values_of(b, key);
      REQUIRE(x.size() == y.size());
      REQUIRE(!x.empty());
      for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= tolerance);
    }
  };
  const Workspace cpu(tiny_gpu_recipe()), gpu(tiny_gpu_recipe()), cut(tiny_gpu_recipe());
  run_well(cpu, {"run.device=cpu", kLongEnough});
  const auto run = gpu.run({"run.device=cuda", kLongEnough});
  INFO(run.output);
  REQUIRE(run.exit_code == 0);
  CHECK(holds(run.output, {"device: emulated GPU", kLongAsPlanned}));
  compare(cpu, gpu, 1e-4);

  const auto stopped =
      cut.run({"run.device=cuda", kLongEnough}, {.signal = SIGTERM, .signal_after = kSecondStep});
  INFO(stopped.output);
  CHECK(stopped.exit_code == 75);
  run_well(cut, {"run.device=cuda", kLongEnough});
  CHECK(fingerprint(cut.path, kLongSteps) == fingerprint(gpu.path, kLongSteps));

  // Evaluations wait for the steps under way, as saves do.
  const Workspace unsaved(tiny_gpu_recipe());
  run_well(unsaved, {"run.device=cuda", kLongEnough, "checkpoint.interval=1000"});
  compare(gpu, unsaved, 0);

  // What a GPU saved goes on on the CPU.
  const auto other = cut.run({"run.device=cpu", "training.max_steps=14"});
  CHECK(other.exit_code == 0);
  CHECK(holds(other.output, {"resumed from step 12"}));
  const auto bench = gpu.call({"bench", "recipe.yaml", "run.device=cuda", "--steps", "1"});
  CHECK(bench.exit_code == 0);
  CHECK(holds(bench.output, {"attention_forward", "timed by the GPU's clock", "a copy of "}));
  // The arena has what the plan says, or all that is free but 1 GiB; the driver counts the rest
  // too.
  for (const bool planned : {true, false}) {
    std::vector<std::string> words{"bench",   "recipe.yaml", "run.device=cuda",
                                   "--steps", "1",           "--json"};
    if (planned) words.emplace_back("--planned-memory");
    const auto measured = gpu.call(words);
    INFO(measured.output);
    REQUIRE(measured.exit_code == 0);
    const auto json = nlohmann::json::parse(measured.output.substr(measured.output.find('{')));
    const std::uint64_t arena = json.at("arena_bytes"), used = json.at("used_bytes_of_gpu");
    CHECK(arena == (planned ? json.at("planned_bytes").get<std::uint64_t>() : 3ull << 30));
    // Without a limit what measures the copies goes beyond what steps need.
    if (planned) CHECK(json.at("reached_bytes") == json.at("planned_bytes"));
    CHECK(used >= arena);
    CHECK(used < arena + (64 << 20));
    CHECK(json.at("copy_bytes_per_second") > 0);
    for (const auto& kernel : json.at("kernels")) {
      CHECK(kernel.at("seconds") > 0);
      CHECK(kernel.contains("of_copy") == kernel.contains("bytes_per_second"));
    }
  }
  // A GPU without a data sheet has no rate by which a step would be as fast as in the profile.
  const auto rated =
      gpu.call({"bench", "recipe.yaml", "run.device=cuda", "--steps", "1", "--profile", "h200"});
  CHECK(rated.exit_code == 0);
  CHECK_FALSE(holds(rated.output, {"at the profile's speed"}));
  CHECK(holds(gpu.call({"doctor", "--quick", "--threads", "1", "--output", "p.json"}).output,
              {"emulated GPU, sm_90", "  measured  ", " GB/s copied (", ", read and written), ",
               " TFLOP/s bf16 ("}));
}

TEST_CASE("a run without masters takes memory as planned on an emulated GPU, and resumes" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  for (const char* optimizer : {"adamw", "muon"}) {
    const std::vector<std::string> none = {"run.device=cuda",
                                           "precision={compute: bf16, master: none}",
                                           std::string("optimizer.name=") + optimizer, kLongEnough};
    const Workspace whole(tiny_gpu_recipe()), cut(tiny_gpu_recipe());
    const auto run = whole.run(none);
    INFO(run.output);
    REQUIRE(run.exit_code == 0);
    CHECK(holds(run.output, {kLongAsPlanned}));
    const auto stopped = cut.run(none, {.signal = SIGTERM, .signal_after = kSecondStep});
    CHECK(stopped.exit_code == 75);
    run_well(cut, none);
    CHECK(fingerprint(cut.path, kLongSteps) == fingerprint(whole.path, kLongSteps));
  }
}

TEST_CASE("products on an emulated GPU are timed once, and a run keeps its choices" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> on_gpu = {"run.device=cuda", kLongEnough};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), on_gpu.begin(), on_gpu.end());
    return more;
  };
  const auto fingerprint_of = [](const Workspace& here) {
    return fingerprint(here.path, kLongSteps);
  };
  const Workspace whole(tiny_gpu_recipe()), cut(tiny_gpu_recipe()), second(tiny_gpu_recipe()),
      guess(tiny_gpu_recipe());
  const auto first = whole.run(on_gpu);
  INFO(first.output);
  REQUIRE(first.exit_code == 0);
  CHECK(holds(first.output, {"products: ", " measured in "}));
  CHECK_FALSE(holds(first.output, {"not tuned"}));
  CHECK(std::filesystem::exists(emulated.products()));
  CHECK(std::filesystem::exists(whole.path / "run" / "products.txt"));

  const auto again = second.run(on_gpu);
  CHECK(holds(again.output, {" from " + emulated.products().string()}));
  CHECK_FALSE(holds(again.output, {" measured in "}));
  CHECK(fingerprint_of(second) == fingerprint_of(whole));

  // The cache is gone, and now other algorithms would win: a run that resumes has its own choices.
  const auto stopped = cut.run(on_gpu, {.signal = SIGTERM, .signal_after = kSecondStep});
  REQUIRE(stopped.exit_code == 75);
  std::filesystem::remove(emulated.products());
  const Variable reversed("LLMTRAIN_FAKE_CUBLASLT_TIMES", "reversed");
  const auto resumed = cut.run(on_gpu);
  CHECK(holds(resumed.output, {" as in the checkpoint"}));
  CHECK_FALSE(holds(resumed.output, {" measured in "}));
  CHECK_FALSE(std::filesystem::exists(emulated.products()));
  CHECK(fingerprint_of(cut) == fingerprint_of(whole));

  // A run of its own measures, somewhere else if so asked, and has other bits.
  const Workspace other(tiny_gpu_recipe());
  const auto elsewhere = other.run(with({"run.product_cache=kept/here.txt"}));
  CHECK(holds(elsewhere.output, {" measured in "}));
  CHECK(std::filesystem::exists(other.path / "kept" / "here.txt"));
  CHECK(fingerprint_of(other) != fingerprint_of(whole));
  const auto newer = [&] {
    const Variable version("LLMTRAIN_FAKE_CUBLASLT_VERSION", "130200");
    return other.run(with({"run.product_cache=kept/here.txt", "run.output_dir=b"}));
  }();
  CHECK(holds(newer.output, {" measured in "}));

  const auto untuned = guess.run(with({"run.tune_products=false"}));
  CHECK(untuned.exit_code == 0);
  CHECK_FALSE(holds(untuned.output, {"products: "}));
}

TEST_CASE("TF32 is for products of fp32 on a GPU, and shows in their losses" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace plain(tiny_gpu_recipe()), tf32(tiny_gpu_recipe()), bf16(tiny_gpu_recipe());
  run_well(plain, {"run.device=cuda"});
  run_well(tf32, {"run.device=cuda", "precision.tf32=true"});
  run_well(bf16, {"run.device=cuda", "precision.compute=bf16"});
  const auto distance = [&](const Workspace& here) {
    const std::vector<double> x = values_of(plain, "train/grad_norm"),
                              y = values_of(here, "train/grad_norm");
    REQUIRE(x.size() == y.size());
    return std::abs(x.front() - y.front());
  };
  CHECK(distance(tf32) > 0);
  CHECK(distance(tf32) < 0.75 * distance(bf16));

  const auto on_cpu = plain.run({"precision.tf32=true"});
  CHECK(on_cpu.exit_code == 2);
  CHECK(holds(on_cpu.output, {"precision.tf32", "the CPU are fp32", "run.device: cuda"}));
  const auto narrow =
      plain.run({"run.device=cuda", "precision.tf32=true", "precision.compute=bf16"});
  CHECK(narrow.exit_code == 2);
  CHECK(holds(narrow.output, {"precision.tf32", "compute is bf16"}));
  const auto here = plain.call({"plan", "recipe.yaml", "run.device=auto", "precision.tf32=true"});
  CHECK(here.exit_code == (std::filesystem::exists("/dev/nvidiactl") ? 0 : 2));
  const auto plan = plain.call(
      {"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200", "precision.tf32=true"});
  CHECK(holds(plan.output, {"matmul forward tf32", "dense peak of tf32"}));
}

TEST_CASE("a GPU that the plugin has no code for is refused with the remedy" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Variable older("LLMTRAIN_FAKE_CAPABILITY", "80");
  const Workspace here(tiny_gpu_recipe());
  const auto run = here.run({"run.device=cuda"});
  CHECK(run.exit_code == 1);
  CHECK(holds(run.output, {"built for sm_90a; this GPU is sm_80", "CMAKE_CUDA_ARCHITECTURES=80"}));
}

TEST_CASE("a run on an emulated GPU says who computes attention, and resumes with cuDNN's" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> bf16 = {"run.device=cuda", "precision.compute=bf16", kLongEnough,
                                         "data.packing.cross_document_attention=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), bf16.begin(), bf16.end());
    return more;
  };
  const Workspace whole(tiny_gpu_recipe()), cut(tiny_gpu_recipe()), own(tiny_gpu_recipe());
  const auto run = whole.run(bf16);
  INFO(run.output);
  REQUIRE(run.exit_code == 0);
  CHECK(holds(run.output, {"attention: cuDNN 9.19.0 (forward, backward)", kLongAsPlanned}));
  const auto stopped = cut.run(bf16, {.signal = SIGTERM, .signal_after = kSecondStep});
  CHECK(stopped.exit_code == 75);
  run_well(cut, bf16);
  CHECK(fingerprint(cut.path, kLongSteps) == fingerprint(whole.path, kLongSteps));

  const auto without = own.run(with({"run.attention=own"}));
  CHECK(holds(without.output,
              {"attention: our kernels for wgmma (forward, backward)", kLongAsPlanned}));
  const Workspace documents(tiny_gpu_recipe()), fp32(tiny_gpu_recipe());
  CHECK(holds(
      documents.run({"run.device=cuda", "precision.compute=bf16", "run.attention=cudnn"}).output,
      {"attention: cuDNN 9.19.0 (forward, backward)", "6 steps took memory as planned"}));
  CHECK(
      holds(fp32.run({"run.device=cuda"}).output,
            {"attention: our plain kernels (forward, backward; another type than bf16 and fp16)"}));
  CHECK(holds(what_doctor_found(own, "9.19.0"), {"cuDNN", "9.19.0"}));
}

TEST_CASE("run.determinism: fast reaches the libraries, and its steps are as planned" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  // Too little for a backward in a fixed order, which is then ours.
  const std::vector<std::string> narrow = {"run.device=cuda", "precision.compute=bf16",
                                           "data.packing.cross_document_attention=true",
                                           "run.library_workspace=512B"};
  const auto with = [&](const char* mode, std::vector<std::string> more = {}) {
    more.insert(more.begin(), narrow.begin(), narrow.end());
    more.push_back(std::string("run.determinism=") + mode);
    return more;
  };
  const Workspace here(tiny_gpu_recipe());
  const auto run = here.run(with("run"));
  INFO(run.output);
  CHECK(run.exit_code == 0);
  CHECK(holds(run.output, {"determinism: run", "attention: cuDNN 9.19.0 (forward)",
                           "(backward; engine 9 is not deterministic", "of run.library_workspace",
                           "6 steps took memory as planned"}));
  const auto fast = here.run(with("fast", {"run.output_dir=fast"}));
  INFO(fast.output);
  CHECK(fast.exit_code == 0);
  CHECK(holds(fast.output,
              {"determinism: fast", "attention: cuDNN 9.19.0 (forward, backward)",
               " measured in ",  // sums in FP32 have other algorithms than those of `run`
               "6 steps took memory as planned"}));
  CHECK(holds(read_file(here.path / "fast" / "run.json"), {"\"determinism\": \"fast\""}));

  const auto other = here.run(with("fast", {"training.max_steps=8"}));
  CHECK(other.exit_code == 0);
  CHECK(holds(other.output, {"resumed from step 6", "changed since then: run.determinism"}));
  const auto bench = here.call({"bench", "recipe.yaml", "run.device=cuda", "--steps", "1"});
  CHECK(holds(bench.output, {"determinism run"}));
  CHECK(holds(here.call({"plan", "recipe.yaml", "run.determinism=fast"}).output,
              {"determinism", "fast"}));
  const auto slow = here.run({"run.determinism=slow"});
  CHECK(slow.exit_code == 2);
  CHECK(holds(slow.output,
              {"run.determinism", "unknown value `slow`", "allowed: fast, run, layout"}));
}

TEST_CASE("a GPU whose wgmma is not as believed computes attention without it, and says so" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> own = {"run.device=cuda", "precision.compute=bf16",
                                        "run.attention=own"},
                                 own_fp16 = {own[0], "precision.compute=fp16", own[2]};
  const std::string by_wgmma = "attention: our kernels for wgmma (forward, backward)";
  const Workspace trusted(tiny_gpu_recipe()), off(tiny_gpu_recipe()), off_fp16(tiny_gpu_recipe());
  CHECK(holds(trusted.run(own).output, {by_wgmma}));
  {
    const Variable setting("LLMTRAIN_WGMMA", "off");
    run_well(off, own);
    run_well(off_fp16, own_fp16);
  }
  const auto says = [&](const char* mode, const char* reason, bool fp16 = false) {
    CAPTURE(mode);
    const Variable fake("LLMTRAIN_FAKE_WGMMA", mode);
    const Workspace here(tiny_gpu_recipe());
    CHECK(holds(
        here.run(fp16 ? own_fp16 : own).output,
        {std::string("attention: our kernels for tensor cores (forward, backward; ") + reason + ")",
         "6 steps took memory as planned"}));
    CHECK(fingerprint(here.path, 6) == fingerprint((fp16 ? off_fp16 : off).path, 6));
  };
  says("wrong", "no wgmma: their results in bf16 for head_dim 64 are not those of mma.sync");
  says("wrong-fp16", "no wgmma: their results in fp16 for head_dim 64 are not those of mma.sync",
       true);
  {
    const Variable fake("LLMTRAIN_FAKE_WGMMA", "wrong-fp16");
    const Workspace here(tiny_gpu_recipe());
    CHECK(holds(here.run(own).output, {by_wgmma}));
  }
  says("fails",
       "no wgmma: their trial failed (CUDA: the trial failed: an error of the emulated GPU)");
  says("undescribed", "no wgmma: the driver refuses to describe a matrix (error 1)");
  {
    const Variable fake("LLMTRAIN_FAKE_WGMMA", "wrong"), setting("LLMTRAIN_WGMMA", "untried");
    const Workspace here(tiny_gpu_recipe());
    CHECK(
        holds(here.run(own).output,
              {"attention: our kernels for wgmma (forward, backward; LLMTRAIN_WGMMA is untried)"}));
    CHECK(fingerprint(here.path, 6) != fingerprint(off.path, 6));
  }
  const Variable lost("LLMTRAIN_FAKE_WGMMA", "lost");
  const auto ended = trusted.run(own);
  CHECK(ended.exit_code == 1);
  CHECK(holds(ended.output, {"the trial of attention with wgmma failed, and the GPU with it",
                             "set LLMTRAIN_WGMMA=off to do without"}));
}

TEST_CASE("cuDNN that is wanted and cannot be had is an error with the reason" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> wanted = {"run.device=cuda", "precision.compute=bf16",
                                           "data.packing.cross_document_attention=true",
                                           "run.attention=cudnn"};
  const Workspace here(tiny_gpu_recipe());
  const auto cpu = here.run({"run.device=cpu", "run.attention=cudnn"});
  CHECK(cpu.exit_code == 2);
  CHECK(holds(cpu.output, {"run.attention", "is for a GPU"}));
  const auto layout =
      here.run({"run.device=cuda", "run.attention=cudnn", "run.determinism=layout"});
  CHECK(layout.exit_code == 2);
  CHECK(holds(layout.output, {"run.attention", "run.determinism: layout by fixed rules"}));
  const auto fp32 = here.run({"run.device=cuda", "run.attention=cudnn"});
  CHECK(fp32.exit_code == 2);
  CHECK(holds(fp32.output,
              {"run.attention is cudnn", "another type than bf16", "run.attention: auto"}));
  {
    const Variable missing("LLMTRAIN_CUDNN", "/nonexistent/libcudnn.so.9");
    const auto run = here.run(wanted);
    CHECK(run.exit_code == 1);
    CHECK(holds(run.output, {"run.attention is cudnn, but /nonexistent/libcudnn.so.9 is not there",
                             "run.attention: auto"}));
    // The plan is the same with and without the library.
    const auto automatic = here.run({wanted[0], wanted[1], wanted[2]});
    CHECK(holds(automatic.output, {"attention: our kernels for wgmma (forward, backward; "
                                   "/nonexistent/libcudnn.so.9 is not there",
                                   "6 steps took memory as planned"}));
  }
  const Variable old("LLMTRAIN_FAKE_CUDNN", "old");
  CHECK(
      holds(what_doctor_found(here, " is used from "), {"cuDNN", "9.10.0 is used from 9.18.0 on"}));
}

TEST_CASE("a file that is no plugin, or another build's, is named") {
  const Workspace here(tiny_gpu_recipe());
  here.write("plugin.so", "no library");
  const std::string file = (here.path / "plugin.so").string();
  const Plugin plugin(file.c_str());
  const auto run = here.run({"run.device=cuda"});
  CHECK(run.exit_code == 1);
  CHECK(holds(run.output, {"plugin.so"}));
}

}  // namespace llmtrain
