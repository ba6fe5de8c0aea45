#pragma once
/// Large parts of files that are read once, from their beginning to their end.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "lib/base/file.hpp"

namespace llmtrain {

/// Gives the bytes [begin, end) of `file` to `use`, in order, in pieces of `piece_bytes`. While
/// `use` looks at one, a thread reads the next: nobody waits for the disk without need. Each lies
/// where a file that bypasses the page cache may read to. Errors as those of File::read_at, and
/// what `use` throws; DataError is thrown before `use` sees anything of the piece that ends early.
void read_in_pieces(const File& file, std::uint64_t begin, std::uint64_t end,
                    const std::function<void(std::span<const std::byte>)>& use,
                    std::size_t piece_bytes = std::size_t{4} << 20);

}  // namespace llmtrain
