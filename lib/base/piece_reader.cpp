#include "lib/base/piece_reader.hpp"

#include <algorithm>
#include <future>
#include <system_error>
#include <utility>

#include "lib/base/activity.hpp"

namespace llmtrain {

void read_in_pieces(const File& file, std::uint64_t begin, std::uint64_t end,
                    const std::function<void(std::span<const std::byte>)>& use,
                    std::size_t piece_bytes) {
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, piece_bytes));
  BlockMemory next = make_block_memory(most);
  BlockMemory used = make_block_memory(begin + most < end ? most : 0);
  std::future<void> read;  // last: it is waited for before what it reads to goes
  const auto start = [&](std::span<std::byte> piece, std::uint64_t at, std::launch how) {
    read = std::async(how, [&file, piece, at, ticks = activity::counted_in()] {
      const activity::CountedThread counted(ticks);
      file.read_at(at, piece);
    });
  };
  for (std::uint64_t at = begin; at < end; at += most) {
    const std::span<std::byte> piece(next.get(), std::min<std::uint64_t>(end - at, most));
    if (!read.valid()) start(piece, at, std::launch::deferred);
    read.get();
    activity::tick();  // of the thread that wants it
    std::swap(next, used);
    if (const std::uint64_t later = at + most; later < end) {
      const std::span<std::byte> following(next.get(), std::min<std::uint64_t>(end - later, most));
      try {
        start(following, later, std::launch::async);
      } catch (const std::system_error&) {  // no more threads: `use` is waited for, then the disk
      }
    }
    use(piece);
  }
}

}  // namespace llmtrain
