#include "lib/checkpoint/pending_save.hpp"

#include <random>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

std::string step_directory_name(std::uint64_t step) { return fmt::format("step-{:08}", step); }

std::string make_nonce() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

bool is_nonce(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

PendingSave::PendingSave(fs::path root, const StoreLock& lock, std::uint64_t step,
                         ShardOptions options)
    : root_(std::move(root)),
      lock_(&lock),
      step_(step),
      options_(std::move(options)),
      temporary_(root_ / fmt::format("{}.tmp-{}", step_directory_name(step), make_nonce())) {
  hit("directory.create");
  create_new_directory(temporary_);
}

PendingSave::~PendingSave() {
  if (committed_) return;
  try {
    remove_tree(temporary_);
  } catch (const Error& error) {
    log::warning("{} (harmless: the next start removes it)", error.what());
  }
}

void PendingSave::hit(std::string_view point) const {
  if (options_.failpoint) options_.failpoint(point);
}

WrittenShards PendingSave::write(std::span<const TensorBox> boxes) {
  return write_shards(temporary_, boxes, options_);
}

void PendingSave::write_manifest(const Manifest& manifest) const {
  const trace::Scope span(trace::Kind::io, [] { return fmt::format("write {}", kManifestName); });
  const std::string text = format_manifest(manifest);
  const std::string_view view = text;
  hit("manifest.create");
  File file = File::create_new(temporary_ / kManifestName);
  file.write(view.substr(0, view.size() / 2));
  hit("manifest.half");
  file.write(view.substr(view.size() / 2));
  hit("manifest.sync");
  file.sync();
  file.close();
}

void PendingSave::commit(const RunState& run, std::span<const WrittenShards> shards,
                         const ModelExport* model, const WriteLimits& limits) {
  Manifest manifest{.step = step_, .run = run, .files = {}, .tensors = {}};
  for (const WrittenShards& part : shards) add_shards(manifest, part);
  if (model != nullptr) {
    create_new_directory(temporary_ / kExportName);
    Loader saved(temporary_, manifest);
    model->write(temporary_ / kExportName, saved, limits);
  }
  write_manifest(manifest);
  hit("directory.sync");
  sync_directory(temporary_);

  lock_->while_held([this] { make_visible(); });
  hit("latest.write");
  try {
    write_file_atomic(root_ / "latest", step_directory_name(step_) + "\n");
  } catch (const StorageError& error) {  // a hint, and the checkpoint is there
    log::warning("{}", error.what());
  }
  hit("latest.written");
}

void PendingSave::make_visible() {
  const std::string name = step_directory_name(step_);
  const fs::path final_path = root_ / name;
  const fs::path aside = root_ / fmt::format("{}.old-{}", name, make_nonce());
  const bool replaces = has_entry(final_path);
  if (replaces) {
    // A crash between the two renames leaves only the aside; the next writer puts it back.
    hit("replace.aside");
    rename_path(final_path, aside);
  }
  try {
    hit("commit.rename");
    rename_path(temporary_, final_path);
  } catch (...) {
    if (replaces) rename_path(aside, final_path);
    throw;
  }
  committed_ = true;
  hit("commit.sync");
  sync_directory(root_);
  if (replaces) {
    hit("replace.trash");
    remove_tree(aside);
  }
}

}  // namespace llmtrain::checkpoint
