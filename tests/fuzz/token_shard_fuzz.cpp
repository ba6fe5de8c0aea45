// Token shards and their index from arbitrary bytes. The checksums are made right before reading,
// so that the checks behind them are reached.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/hash.hpp"
#include "lib/data/token_set.hpp"
#include "lib/data/token_shard.hpp"

namespace {

using namespace llmtrain;

void put(std::string& file, std::size_t offset, std::uint64_t value) {
  std::memcpy(file.data() + offset, &value, sizeof value);
}

std::string with_right_checksums(std::string file) {
  if (file.size() < data::kShardHeaderBytes) return file;
  std::memcpy(file.data(), "LLMTOKEN\2\0\0\0", 12);
  const Hash128 payload = hash128(std::string_view(file).substr(data::kShardHeaderBytes));
  put(file, 64, payload.high);
  put(file, 72, payload.low);
  put(file, 96, hash64(std::string_view(file).substr(0, 96)));
  return file;
}

void read_all(const std::filesystem::path& path, data::ShardCheck check) {
  try {
    const data::TokenShard shard = data::TokenShard::open(path, check);
    for (std::uint64_t d = 0; d < shard.header().document_count; ++d) {
      const std::uint64_t begin = shard.token_begin(d);
      std::vector<std::int32_t> tokens(shard.document(d).token_end - begin);
      shard.read_tokens(begin, tokens);
    }
  } catch (const DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(bytes), size);
  try {
    const auto index = data::TokenSetIndex::from_json(input, "fuzz");
    data::TokenSetIndex::from_json(index.to_json(), "again");
  } catch (const DataError&) {
  }
  const int fd = ::memfd_create("shard", 0);
  for (const std::string& file : {input, with_right_checksums(input)}) {
    if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, file.data(), file.size(), 0) < 0) continue;
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    read_all(path, data::ShardCheck::header);
    read_all(path, data::ShardCheck::payload);
  }
  ::close(fd);
  return 0;
}
