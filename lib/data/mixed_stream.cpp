#include "lib/data/mixed_stream.hpp"

#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

std::vector<SampleStream> only(SampleStream stream) {
  std::vector<SampleStream> streams;
  streams.push_back(std::move(stream));
  return streams;
}

}  // namespace

MixedStream::MixedStream(SampleStream stream)
    : MixedStream(only(std::move(stream)), Mixture({{.samples = 1}}, {{.weights = {1.0}}})) {}

MixedStream::MixedStream(std::vector<SampleStream> streams, Mixture mixture)
    : streams_(std::move(streams)), mixture_(std::move(mixture)) {
  require(!streams_.empty(), "a stream of no source");
  for (const SampleStream& stream : streams_) {
    epoch_size_ += stream.epoch_size();
    require(
        stream.samples().options().seq_len == seq_len() && stream.samples().end_id() == end_id(),
        "sources of different samples");
  }
}

std::int64_t MixedStream::read(std::uint64_t global_index, SampleView out) const {
  const Mixture::Place place = mixture_.place(global_index);
  return streams_[place.source].read(place.index, out);
}

Sample MixedStream::sample_at(std::uint64_t global_index) const {
  const Mixture::Place place = mixture_.place(global_index);
  return streams_[place.source].sample_at(place.index);
}

}  // namespace llmtrain::data
