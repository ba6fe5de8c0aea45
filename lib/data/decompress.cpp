#include "lib/data/decompress.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>
#include <zlib.h>
#include <zstd.h>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::data {

namespace {

constexpr std::size_t kBlockBytes = 1 << 17;
constexpr std::uint64_t kAlwaysAllowedBytes = 1 << 20;

/// What one call made of its input.
struct Progress {
  std::size_t consumed = 0;
  std::size_t produced = 0;
  bool frame_ended = false;  ///< and all of its bytes are out
  std::string problem;       ///< empty when all is well
};

/// One gzip member or Zstandard frame after the other.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual Progress run(std::span<const std::byte> in, std::span<std::byte> out) = 0;
};

class GzipDecoder final : public Decoder {
 public:
  GzipDecoder() {
    constexpr int kGzipOnly = 15 + 16;  // the largest window; refuses bare zlib streams
    require(::inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib does not start");
  }
  ~GzipDecoder() override { ::inflateEnd(&stream_); }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  Progress run(std::span<const std::byte> in, std::span<std::byte> out) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int result = ::inflate(&stream_, Z_NO_FLUSH);
    Progress progress{.consumed = in.size() - stream_.avail_in,
                      .produced = out.size() - stream_.avail_out,
                      .frame_ended = result == Z_STREAM_END,
                      .problem = {}};
    if (result == Z_STREAM_END) {
      ::inflateReset(&stream_);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      progress.problem = stream_.msg != nullptr ? stream_.msg : ::zError(result);
    }
    return progress;
  }

 private:
  z_stream stream_{};
};

class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder() : stream_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    require(stream_ != nullptr, "Zstandard does not start");
  }

  Progress run(std::span<const std::byte> in, std::span<std::byte> out) override {
    // The library may be built to read the formats before 0.8 too. While it looks for a header, it
    // takes four bytes of one of them for the start of such a frame, wherever its input is cut: so
    // it gets fewer. Otherwise the same bytes could mean other text in other pieces.
    if (frame_bytes_ < kLongestHeader) in = in.first(std::min<std::size_t>(in.size(), 3));
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const std::size_t result = ::ZSTD_decompressStream(stream_.get(), &output, &input);
    const bool failed = ::ZSTD_isError(result) != 0;
    frame_bytes_ = result == 0 ? 0 : frame_bytes_ + input.pos;
    return {input.pos, output.pos, result == 0, failed ? ::ZSTD_getErrorName(result) : ""};
  }

 private:
  static constexpr std::uint64_t kLongestHeader = 18;
  std::uint64_t frame_bytes_ = 0;  // consumed of the present frame
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
};

std::unique_ptr<Decoder> make_decoder(Compression compression) {
  if (compression == Compression::gzip) return std::make_unique<GzipDecoder>();
  require(compression == Compression::zstd, "nothing to decompress");
  return std::make_unique<ZstdDecoder>();
}

class Decompression {
 public:
  Decompression(Compression compression, std::uint64_t stored_bytes, const DecompressLimits& limits,
                std::string_view name)
      : decoder_(make_decoder(compression)),
        format_(compression == Compression::gzip ? "gzip" : "Zstandard"),
        stored_bytes_(stored_bytes),
        limits_(limits),
        name_(name) {}

  std::uint64_t run(const ReadBytes& read,
                    const std::function<void(std::span<const std::byte>)>& sink) {
    std::vector<std::byte> stored(kBlockBytes), text(kBlockBytes);
    std::span<const std::byte> in;
    bool at_end = false;
    for (;;) {
      if (in.empty() && !at_end) {
        in = std::span(stored).first(read(stored));
        at_end = in.empty();
      }
      if (at_end && in.empty() && between_frames_) return produced_;
      const Progress step = decoder_->run(in, text);
      take(step);
      if (step.produced > 0) sink(std::span<const std::byte>(text).first(step.produced));
      const bool stuck = step.consumed == 0 && step.produced == 0 && !step.frame_ended;
      if (stuck && at_end) refuse("the data is cut off");
      if (stuck && !in.empty()) refuse("damaged");
      in = in.subspan(step.consumed);
    }
  }

 private:
  void take(const Progress& step) {
    offset_ += step.consumed;
    produced_ += step.produced;
    frame_produced_ += step.produced;
    if (!step.problem.empty()) explain(step.problem);
    check_limits();
    if (step.consumed > 0 || step.produced > 0) between_frames_ = false;
    if (step.frame_ended) {
      between_frames_ = true;
      frame_start_ = offset_;
      frame_produced_ = 0;
    }
  }

  [[noreturn]] void explain(const std::string& problem) {
    if (frame_produced_ > 0) refuse(fmt::format("damaged ({})", problem));
    offset_ = frame_start_;
    refuse(fmt::format("{} ({})",
                       frame_start_ > 0 ? "something else follows the compressed data"
                                        : fmt::format("not {} data, or damaged", format_),
                       problem));
  }

  [[noreturn]] void refuse(std::string_view problem) const {
    fail<DataError>("{}: offset {}: {}; make the file again, or leave it out of the data sources",
                    name_, offset_, problem);
  }

  void check_limits() const {
    const std::uint64_t by_ratio = std::max(kAlwaysAllowedBytes, stored_bytes_ * limits_.max_ratio);
    if (produced_ > by_ratio) {
      fail<DataError>(
          "{}: offset {}: expands to more than {} times its {}, which text does not; decompress it "
          "by hand if it is text all the same",
          name_, offset_, limits_.max_ratio, format_bytes(stored_bytes_));
    }
    if (produced_ > limits_.max_bytes) {
      fail<DataError>(
          "{}: offset {}: expands to more than {}; raise data.max_decompressed_size, or leave it "
          "out of the data sources",
          name_, offset_, format_bytes(limits_.max_bytes));
    }
  }

  std::unique_ptr<Decoder> decoder_;
  std::string_view format_;
  std::uint64_t stored_bytes_;
  DecompressLimits limits_;
  std::string_view name_;
  std::uint64_t offset_ = 0;       // in the compressed data
  std::uint64_t frame_start_ = 0;  // there
  std::uint64_t produced_ = 0;
  std::uint64_t frame_produced_ = 0;
  bool between_frames_ = false;  // not before the first: no data at all is cut off
};

}  // namespace

Compression compression_of(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  if (extension == ".gz") return Compression::gzip;
  return extension == ".zst" ? Compression::zstd : Compression::none;
}

std::filesystem::path without_compression(const std::filesystem::path& path) {
  if (compression_of(path) == Compression::none) return path;
  std::filesystem::path plain = path;
  return plain.replace_extension();
}

std::uint64_t decompress(Compression compression, const ReadBytes& read, std::uint64_t stored_bytes,
                         const DecompressLimits& limits, std::string_view name,
                         const std::function<void(std::span<const std::byte>)>& sink) {
  return Decompression(compression, stored_bytes, limits, name).run(read, sink);
}

}  // namespace llmtrain::data
