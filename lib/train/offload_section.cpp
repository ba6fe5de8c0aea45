#include "lib/train/offload_section.hpp"

namespace llmtrain::train {

std::optional<optim::Offload> OffloadSection::settings() const {
  // All are read whatever they say: validate() has refused what does not go together.
  optim::Offload settings{.masters = master() == OffloadTo::nvme,
                          .parameters = parameters() == OffloadTo::nvme,
                          .buffer_bytes = buffer(),
                          .checksums = checksum(),
                          .directory = path().value_or("")};
  if (optimizer() != OffloadTo::nvme) return std::nullopt;
  return settings;
}

std::optional<engine::ActivationOffloadOptions> OffloadSection::of_activations() const {
  engine::ActivationOffloadOptions options{.names = activations(),
                                           .buffer_bytes = activation_buffer(),
                                           .checksums = checksum(),
                                           .directory = path().value_or("")};
  if (activations().empty()) return std::nullopt;
  return options;
}

std::filesystem::path OffloadSection::directory(const std::filesystem::path& of_run) const {
  return path() ? std::filesystem::path(*path()) : of_run / "offload";
}

void OffloadSection::validate(recipe::Issues& issues) const {
  const auto check = [&](const recipe::ValueEntry& key, std::string_view of) {
    if (key.value_text() == key.default_text()) return;
    issues.add(key, fmt::format("does nothing without {}", of), "leave it out, or set that");
  };
  if (optimizer() == OffloadTo::none) {
    check(buffer, "offload.optimizer: nvme");
    check(master, "offload.optimizer: nvme, whose file it shares");
    check(parameters, "offload.optimizer: nvme, whose file they share");
  }
  if (activations().empty()) check(activation_buffer, "offload.activations");
  if (is_used()) return;
  check(path, "offload.optimizer: nvme or offload.activations");
  check(checksum, "offload.optimizer: nvme or offload.activations");
}

}  // namespace llmtrain::train
