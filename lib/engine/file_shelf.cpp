#include "lib/engine/file_shelf.hpp"

#include <chrono>
#include <ranges>
#include <utility>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/base/trace_threads.hpp"

namespace llmtrain::engine {

using offload::ValueStore;

namespace {

constexpr std::uint64_t kAlignment = offload::ScratchFile::kAlignment;

}  // namespace

/// Of a block's values, in the order of its items. Of the thread that stores them.
struct FileShelf::Ids {
  std::vector<ValueStore::Id> all;
};

class FileShelf::Moving final : public Copies {
 public:
  Moving(FileShelf& of, std::future<void> end) : of_(&of), end_(std::move(end)) {}
  void hold_launches() override {
    const trace::Scope span(trace::Kind::io, "wait for activations");
    const auto begin = std::chrono::steady_clock::now();
    end_.get();
    of_->waited_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  FileShelf* of_;
  std::future<void> end_;
};

class FileShelf::InFile final : public Block {
 public:
  InFile(FileShelf& of, std::span<const Item> items) : ids(std::make_shared<Ids>()), of_(&of) {
    for (const Item& item : items) {
      is_there_.push_back(true);
      bytes_.push_back(item.bytes);
      of_->use_.put(item.bytes);
      of_->held_bytes_ += item.bytes;
      of_->down_bytes_ += item.bytes;
    }
  }
  ~InFile() override {
    std::vector<std::size_t> given_up;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (is_there_[i]) given_up.push_back(i);
      leave(i);
    }
    if (!of_->store_ || given_up.empty()) return;
    of_->thread_->add([&store = *of_->store_, ids = ids, given_up = std::move(given_up)] {
      for (const std::size_t i : given_up) {
        if (i < ids->all.size()) store.drop(ids->all[i]);
      }
    });
  }
  InFile(const InFile&) = delete;
  InFile& operator=(const InFile&) = delete;

  std::shared_ptr<Copies> bring(std::span<const Place> places) override {
    for (const Place& place : places) {
      of_->up_bytes_ += bytes_[place.number];
      leave(place.number);
    }
    return of_->move([of = of_, ids = ids, places = std::vector(places.begin(), places.end())] {
      // What was put away last is read ahead of what was put away before it.
      for (const Place& place : places | std::views::reverse) {
        of->store_->take(ids->all[place.number],
                         [&](std::span<const std::byte> part, std::uint64_t offset) {
                           of->copies_->to_device(place.device + offset, part.data(), part.size());
                           of->copies_->finish();
                         });
      }
    });
  }

  const std::shared_ptr<Ids> ids;

 private:
  void leave(std::size_t number) {
    if (!is_there_[number]) return;
    is_there_[number] = false;
    of_->use_.gone(bytes_[number]);
    of_->held_bytes_ -= bytes_[number];
  }

  FileShelf* of_;
  std::vector<std::uint64_t> bytes_;
  std::vector<bool> is_there_;
};

FileShelf::FileShelf(Device& device, const ActivationOffloadOptions& options)
    : pool_bytes_(options.buffer_bytes / ValueStore::kBlock * ValueStore::kBlock),
      copies_(device.make_copy_queue()) {
  if (device.is_meta()) return;
  require(!options.directory.empty(), "activations in a file without a directory");
  std::byte* const pinned = copies_->pin(pool_bytes_ + kAlignment).data();
  const auto address = reinterpret_cast<std::uintptr_t>(pinned);
  const std::span pool(pinned + (kAlignment - address % kAlignment) % kAlignment, pool_bytes_);
  store_.emplace(offload::ScratchFile(options.directory, ValueStore::kBlock), pool,
                 offload::StoreOptions{.checksums = options.checksums});
  thread_.emplace();
  thread_->add([] { trace::name_thread("activations to a file"); });
}

FileShelf::~FileShelf() = default;

template <class Work>
std::shared_ptr<ActivationShelf::Copies> FileShelf::move(Work work) {
  if (!store_) return nullptr;
  // Launches so far write what goes down, and may still use the memory of what comes up.
  auto moved = thread_->add([this, launched = copies_->launched(), work = std::move(work)] {
    if (failure_) std::rethrow_exception(failure_);
    try {
      copies_->follow(*launched);
      work();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  });
  return std::make_shared<Moving>(*this, std::move(moved));
}

void FileShelf::store(std::span<const Item> items, Ids& ids, const Ids* before) {
  ValueStore::Id newest = before == nullptr || before->all.empty() ? 0 : before->all.back();
  for (const Item& item : items) {
    newest = store_->put(item.bytes, item.name, newest,
                         [&](std::span<std::byte> part, std::uint64_t offset) {
                           copies_->to_host(part.data(), item.device + offset, part.size());
                           copies_->finish();
                         });
    ids.all.push_back(newest);
  }
}

ActivationShelf::Put FileShelf::put(std::span<const Item> items, const Block* before) {
  auto block = std::make_unique<InFile>(*this, items);
  const auto ids_before = before == nullptr ? nullptr : static_cast<const InFile*>(before)->ids;
  auto copies = move([this, items = std::vector(items.begin(), items.end()), ids = block->ids,
                      ids_before] { store(items, *ids, ids_before.get()); });
  return {std::move(block), std::move(copies)};
}

DeviceActivationFacts FileShelf::facts() const {
  return {.pinned_bytes = pool_bytes_ + kAlignment,
          .down_bytes = down_bytes_,
          .up_bytes = up_bytes_,
          .file_bytes = use_.most_file_bytes(pool_bytes_)};
}

std::optional<offload::StoreTraffic> FileShelf::traffic() const {
  if (!store_) return std::nullopt;
  offload::StoreTraffic traffic = store_->traffic();
  traffic.waited_seconds = waited_seconds_;
  return traffic;
}

}  // namespace llmtrain::engine
