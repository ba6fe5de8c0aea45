// Keys of optimizers.
#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

namespace {

using enum Sight;

const std::vector<Flip> kOptimizer{
    {"optimizer.name", {weights}},
    {"optimizer.betas",
     {weights},
     "",
     {"optimizer.betas=[0.8, 0.95]", "optimizer.betas=[0.9, 0.9]"}},
    {"optimizer.alpha", {weights}, "", {"optimizer.alpha=0.9"}},
    {"optimizer.centered", {weights}, "", {"optimizer.centered=true"}},
    {"optimizer.lr_decay", {weights}, "", {"optimizer.lr_decay=0.1"}},
    {"optimizer.initial_accumulator_value",
     {weights},
     "",
     {"optimizer.initial_accumulator_value=0.1"}},
    {"optimizer.decoupled", {weights}, "optimizer.weight_decay=0.2", {"optimizer.decoupled=true"}},
    {"optimizer.decay_order",
     {weights},
     "optimizer.weight_decay=0.2",
     {"optimizer.decay_order=after"}},
    {"optimizer.decay_order",
     {weights},
     "optimizer.weight_decay=0.2 | optimizer.decoupled=true",
     {"optimizer.decay_order=after"},
     "optimizer.name: amsgrad"},
    {"optimizer.eps", {weights}, "", {"optimizer.eps=1e-3"}},
    {"optimizer.weight_decay", {weights}, "", {"optimizer.weight_decay=0.2"}},
    {"optimizer.momentum", {weights}, "", {"optimizer.momentum=0.5"}},
    {"optimizer.dampening", {weights}, "", {"optimizer.dampening=0.5"}},
    {"optimizer.nesterov", {weights}, "", {"optimizer.nesterov=true"}},
    {"optimizer.nesterov", {weights}, "", {"optimizer.nesterov=false"}, "optimizer.name: muon"},
    {"optimizer.ns_steps", {operations, weights}, "", {"optimizer.ns_steps=3"}},
    {"optimizer.lr_adjustment", {weights}},
    {"optimizer.lr", {weights, metrics}, "", {"optimizer.lr=1e-2"}},
    {"optimizer.max_grad_norm", {weights}, "optimizer.name=sgd", {"optimizer.max_grad_norm=0.1"}},
    {"optimizer.max_grad_value", {operations, weights}, "", {"optimizer.max_grad_value=1e-3"}},
    {"optimizer.no_decay", {weights}, "", {"optimizer.no_decay=[]"}},
    {"optimizer.groups", {weights}, "", {"optimizer.groups=[{match: embedding, lr_scale: 0.5}]"}},
    {"optimizer.groups.*.match",
     {weights},
     "optimizer.groups=[{match: embedding, lr_scale: 0.5}]",
     {"optimizer.groups.0.match=norm"}},
    {"optimizer.groups.*.lr_scale",
     {weights},
     "optimizer.groups=[{match: embedding, lr_scale: 0.5}]",
     {"optimizer.groups.0.lr_scale=0.25"}},
    {"optimizer.groups.*.weight_decay",
     {weights},
     "optimizer.groups=[{match: embedding, lr_scale: 0.5}]",
     {"optimizer.groups.0.weight_decay=0.5"}},
};

}  // namespace

std::span<const Flip> optimizer_flips() { return kOptimizer; }

}  // namespace llmtrain::test
