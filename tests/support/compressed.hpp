#pragma once
/// Compressed bytes for tests.

#include <string>
#include <string_view>
#include <zlib.h>
#include <zstd.h>

namespace llmtrain::test {

/// One gzip member.
inline std::string gzip(std::string_view text) {
  z_stream stream{};
  ::deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string out(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

/// One Zstandard frame with a checksum.
inline std::string zstd(std::string_view text) {
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ::ZSTD_freeCCtx(context);
  return out;
}

}  // namespace llmtrain::test
