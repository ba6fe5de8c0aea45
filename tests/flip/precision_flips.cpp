// Keys of number formats.
#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

namespace {

using enum Sight;

constexpr std::string_view kFp8 = "model.num_hidden_layers=3 | precision.compute=fp8";
constexpr std::string_view kFp8OnGpu =
    "run.device=cuda | model.num_hidden_layers=3 | precision.compute=fp8 | "
    "precision.fp8.products=auto";
constexpr std::string_view kDelayed =
    "model.num_hidden_layers=3 | precision.compute=fp8 | precision.fp8.scaling=delayed";

const std::vector<Flip> kPrecision{
    {"precision.compute", {plan}, "model.num_hidden_layers=3"},
    {"precision.fp8.scaling",
     {plan, metrics},
     "model.num_hidden_layers=3 | precision.compute=fp8 | precision.fp8.scaling=current",
     {"precision.fp8.scaling=delayed", "precision.fp8.scaling=block"}},
    {"precision.fp8.amax_history",
     {plan},
     kDelayed,
     {"precision.fp8.amax_history=2", "precision.fp8.amax_history=1"}},
    {"precision.fp8.amax_algorithm",
     {metrics},
     "model.num_hidden_layers=3 | precision.compute=fp8 | precision.fp8.scaling=delayed | "
     "precision.fp8.amax_algorithm=max",
     {"precision.fp8.amax_algorithm=most_recent"}},
    {"precision.fp8.margin", {metrics}, kDelayed, {"precision.fp8.margin=8"}},
    {"precision.fp8.power_of_two_scales",
     {metrics},
     "model.num_hidden_layers=3 | precision.compute=fp8 | precision.fp8.scaling=block",
     {"precision.fp8.power_of_two_scales=false"}},
    {"precision.fp8.products", {plan}, kFp8OnGpu, {"precision.fp8.products=bf16"}},
    {"precision.fp8.include", {plan, metrics}, kFp8, {"precision.fp8.include=[\"*\"]"}},
    {"precision.fp8.exclude", {plan, metrics}, kFp8, {"precision.fp8.exclude=[\"*.down_proj.*\"]"}},
    {"precision.master", {plan}, "precision.compute=bf16", {"precision.master=bf16+remainder"}},
    {"precision.master", {plan, weights}, "precision.compute=bf16", {"precision.master=none"}},
    {"precision.rounding",
     {weights},
     "precision.compute=bf16 | precision.master=none",
     {"precision.rounding=nearest"}},
    {"precision.rounding",
     {weights},
     "precision.compute=bf16 | precision.master=none | precision.rounding=nearest",
     {"precision.rounding=stochastic"}},
    {"precision.loss_scale",
     {metrics},
     "precision.compute=fp16",
     {"precision.loss_scale=1024", "precision.loss_scale=64"}},
    {"precision.initial_loss_scale",
     {metrics},
     "precision.compute=fp16",
     {"precision.initial_loss_scale=1024"}},
    {"precision.growth_interval",
     {metrics},
     "precision.compute=fp16",
     {"precision.growth_interval=1", "precision.growth_interval=2"}},
    {"precision.growth_factor",
     {metrics},
     "precision.compute=fp16 | precision.growth_interval=1",
     {"precision.growth_factor=4", "precision.growth_factor=16"}},
    // The first step overflows.
    {"precision.backoff_factor",
     {metrics},
     "precision.compute=fp16 | precision.initial_loss_scale=4Gi",
     {"precision.backoff_factor=0.25", "precision.backoff_factor=0.125"}},
    {"precision.logits", {plan, metrics}, "precision.compute=bf16", {"precision.logits=compute"}},
    {"precision.tf32", {plan}, "run.device=cuda", {"precision.tf32=true"}},
};

}  // namespace

std::span<const Flip> precision_flips() { return kPrecision; }

}  // namespace llmtrain::test
