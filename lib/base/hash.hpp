#pragma once
/// XXH3 hashes (https://github.com/Cyan4973/xxHash): stable across machines and releases.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace llmtrain {

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
};

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0);
Hash128 hash128(std::span<const std::byte> bytes);
Hash128 hash128(std::string_view text);

/// 32 lower-case hexadecimal digits, high half first.
std::string to_hex(const Hash128& hash);

/// Incremental XXH3-128 over a stream of pieces; equals hash128 of their concatenation.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Hashes the object representation of a trivially copyable value (little-endian hosts only).
  template <class T>
  void update_value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    update(std::as_bytes(std::span<const T, 1>(&value, 1)));
  }
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmtrain
