#include "lib/train/offload_section.hpp"

namespace llmtrain::train {

std::optional<optim::Offload> OffloadSection::settings() const {
  // All are read whatever they say: validate() has refused what does not go together.
  optim::Offload settings{
      .place = is_on_host() ? optim::OffloadPlace::host : optim::OffloadPlace::file,
      .masters = master() != OffloadTo::none,
      .parameters = parameters() != OffloadTo::none,
      .buffer_bytes = buffer(),
      .checksums = checksum(),
      .directory = path().value_or("")};
  if (optimizer() == OffloadTo::none) return std::nullopt;
  return settings;
}

std::optional<engine::ActivationOffloadOptions> OffloadSection::of_activations() const {
  engine::ActivationOffloadOptions options{
      .names = activations(),
      .gpu_has_file = activation_place() == ActivationPlace::nvme,
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
  if (optimizer() == OffloadTo::none) check(buffer, "offload.optimizer: host or nvme");
  validate_places(issues);
  if (activations().empty()) {
    check(activation_place, "offload.activations");
    check(activation_buffer, "offload.activations");
  }
  if (optimizer() == OffloadTo::nvme || !activations().empty()) return;
  check(path, "offload.optimizer: nvme or offload.activations");
  check(checksum, "offload.optimizer: nvme or offload.activations");
}

void OffloadSection::validate_places(recipe::Issues& issues) const {
  const auto check = [&](const recipe::Key<OffloadTo>& key, std::string_view what,
                         std::string_view shares) {
    if (key() == OffloadTo::none || key() == optimizer()) return;
    const std::string why = key() == OffloadTo::host ? fmt::format("updates have {} there", what)
                                                     : fmt::format("file {}", shares);
    issues.add(key,
               fmt::format("does nothing without offload.optimizer: {}, whose {}",
                           key() == OffloadTo::host ? "host" : "nvme", why),
               "leave it out, or set that");
  };
  check(master, "masters", "it shares");
  check(parameters, "parameters", "they share");
}

}  // namespace llmtrain::train
