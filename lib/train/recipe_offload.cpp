/// Rules between a recipe's `offload` and its other sections.

#include "lib/optim/host_update_rules.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

void Recipe::validate_offload(recipe::Issues& issues) const {
  recipe::judge(issues, [&] {
    if (offload.master() == OffloadTo::none || precision.keeps_masters()) return;
    issues.add(offload.master, "no masters are kept beside what products read here",
               "leave it out, or set precision.compute: bf16, and no master: none");
  });
  recipe::judge(issues, [&] {
    const bool in_file = offload.activation_place() == ActivationPlace::nvme;
    if (offload.activations().empty() || run.device() != DeviceChoice::cuda || in_file) return;
    std::vector<const recipe::ValueEntry*> of_files{&offload.activation_buffer};
    if (offload.optimizer() != OffloadTo::nvme) {
      of_files.insert(of_files.end(), {&offload.path, &offload.checksum});
    }
    for (const recipe::ValueEntry* key : of_files) {
      if (key->value_text() == key->default_text()) continue;
      issues.add(*key, std::string(kNoActivationFilesOfGpu), std::string(kActivationFilesOfGpu));
    }
  });
  recipe::judge(issues, [&] {
    const bool on_host = offload.activation_place() == ActivationPlace::host;
    if (!on_host || run.device() != DeviceChoice::cpu) return;
    issues.add(offload.activation_place, std::string(kNoHostOfCpuActivations),
               "leave it out, or set nvme, which keeps them in a file");
  });
  recipe::judge(issues, [&] {
    if (!offload.is_on_host() || run.device() != DeviceChoice::cpu) return;
    issues.add(offload.optimizer, std::string(kNoHostOfCpu),
               "leave it out, or set nvme, which keeps them in a file");
  });
  recipe::judge(issues, [&] {
    const std::string_view why_not = optim::obstacle_to_host_updates(optimizer.name());
    if (why_not.empty() || !offload.updates_on_host(run.named_device())) return;
    issues.add(offload.optimizer,
               fmt::format("{}, but {} {}", offload.is_on_host() ? "host" : kFilesOfGpu,
                           optimizer.name().name, why_not),
               "leave it out, or choose another optimizer");
  });
  recipe::judge(issues, [&] {
    if (offload.parameters() == OffloadTo::none || !metrics.diagnostics_interval()) return;
    issues.add(metrics.diagnostics_interval,
               "looks at all parameters behind a step, which offload.parameters keeps elsewhere",
               "leave one of both out");
  });
}

void Recipe::validate_files_of(const MeshShape& mesh, recipe::Issues& issues) const {
  if (offload.parameters() == OffloadTo::none || parallelism.zero() == 3) return;
  const int owners = mesh[Axis::dp] * mesh[Axis::sp] / mesh.dp_replicate;
  if (owners == 1) return;
  issues.add(offload.parameters,
             fmt::format("each of {} data ranks would have {}", owners,
                         offload.is_on_host() ? "all parameters in its host's memory"
                                              : "a file with all parameters"),
             "set parallelism.zero: 3, by which each has its slices");
}

}  // namespace llmtrain::train
