#include "lib/train/offload_section.hpp"

namespace llmtrain::train {

std::optional<optim::Offload> OffloadSection::settings() const {
  // All are read whatever they say: validate() has refused what does not go together.
  optim::Offload settings{
      .buffer_bytes = buffer(), .checksums = checksum(), .directory = path().value_or("")};
  if (optimizer() != OffloadTo::nvme) return std::nullopt;
  return settings;
}

std::filesystem::path OffloadSection::directory(const std::filesystem::path& of_run) const {
  return path() ? std::filesystem::path(*path()) : of_run / "offload";
}

void OffloadSection::validate(recipe::Issues& issues) const {
  if (optimizer() == OffloadTo::nvme) return;
  const auto check = [&](const recipe::ValueEntry& key) {
    if (key.value_text() == key.default_text()) return;
    issues.add(key, "does nothing without offload.optimizer: nvme", "leave it out, or set that");
  };
  check(path);
  check(buffer);
  check(checksum);
}

}  // namespace llmtrain::train
