#include "lib/data/adversarial_text.hpp"

#include <array>
#include <string_view>

#include "lib/base/splitmix64.hpp"
#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

using std::string_view_literals::operator""sv;

constexpr std::array kFixed = {"'s"sv,
                               "'LL"sv,
                               "'\u017f"sv,
                               "n't"sv,
                               "'Re"sv,
                               "\n"sv,
                               "\n\n"sv,
                               "\t"sv,
                               "\r\n"sv,
                               "\u180e"sv,
                               "\u00a0"sv,
                               "\u3000"sv,
                               "\xC2\x85"sv,
                               "\u2028"sv,
                               "std::"sv,
                               "template<"sv,
                               "<|endoftext|>"sv,
                               "<|pad|>"sv,
                               "<|pad|>>"sv,
                               "<|"sv,
                               "<s>"sv,
                               "</s>"sv,
                               "<unk>"sv,
                               "<0x0A>"sv,
                               "<mask>"sv,
                               "\u2581"sv,
                               "\u2581\u2581"sv,
                               "\u00e9"sv,
                               "e\u0301"sv,
                               "\u212a"sv,
                               "\u0130"sv,
                               "\u01c5"sv,
                               "\ufb01"sv,
                               "\u1e9b\u0323"sv,
                               "\u0344"sv,
                               "\U0001f469\u200d\U0001f467"sv,
                               "\u0660\u0661"sv,
                               "\u00b2"sv,
                               "\u2167"sv,
                               "\u200d"sv,
                               "\ufeff"sv,
                               "\ufffd"sv,
                               "\0"sv};

constexpr std::array kCommon = {"the"sv,      "return"sv,    "const"sv, "value"sv, "type"sv,
                                "operator"sv, "namespace"sv, "int"sv,   "size"sv,  "iterator"sv};

constexpr std::array<std::uint32_t, 16> kSpaces = {'\t',   '\n',   0x0B,   0x0C,   '\r',   ' ',
                                                   0x85,   0xA0,   0x1680, 0x2003, 0x2009, 0x2028,
                                                   0x202F, 0x205F, 0x3000, 0x200B};

constexpr std::string_view kPunctuation = "_;(){}[]<>=+-*/&|!,.";

char upper(char c) { return static_cast<char>(c - 'a' + 'A'); }

class Writer {
 public:
  explicit Writer(std::uint64_t seed) : random_(seed) {}

  void piece() {
    const std::uint64_t r = random_();
    const std::uint64_t v = r >> 8;
    switch (r % 16) {
      case 0:
        for (std::uint64_t i = 0; i < 1 + v % 7; ++i) put('a' + random_() % 26);
        return;
      case 1:
        text.append(1 + v % 4, ' ');
        return;
      case 2:
        text += std::to_string(v % 100000);
        return;
      case 3:
        text += kFixed[v % kFixed.size()];
        return;
      case 4:
        return put(1 + v % 0x10FFFF);
      case 5:
        return put(0xA0 + v % 0x2F60);
      case 6:
        text.append(" ").append(kCommon[v % kCommon.size()]);
        return;
      case 7:
        return put(static_cast<unsigned char>(kPunctuation[v % kPunctuation.size()]));
      default:
        return rarer_piece(r % 16, v);
    }
  }

  std::string text;

 private:
  void put(std::uint64_t code_point) {
    const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    append_utf8(surrogate ? '?' : static_cast<std::uint32_t>(code_point), text);
  }

  void rarer_piece(std::uint64_t kind, std::uint64_t v) {
    switch (kind) {
      case 8: {
        const std::string_view word = kCommon[v % kCommon.size()];
        for (std::size_t i = 0; i < word.size(); ++i) {
          text += i == 0 || (v & 0x400) != 0 ? upper(word[i]) : word[i];
        }
        return;
      }
      case 9:
        put('a' + (v >> 8) % 26);
        for (std::uint64_t i = 0; i < 1 + v % 3; ++i) put(0x300 + random_() % 0x70);
        return;
      case 10:
        if ((v & 1) != 0) return put(0xAC00 + (v >> 1) % 11172);
        put(0x1100 + (v >> 1) % 19);
        put(0x1161 + (v >> 8) % 21);
        return put(0x11A7 + (v >> 16) % 28);
      case 11:
        put(0x4E00 + v % 0x5200);
        return put(0x3041 + (v >> 16) % 86);
      case 12:
        for (std::uint64_t i = 0; i < 1 + (v >> 8) % 3; ++i) put(kSpaces[v % kSpaces.size()]);
        return;
      case 13:
        text.append(1 + (v >> 8) % 40, "a= \n-*#0"[v % 8]);
        return;
      case 14:
        return put(0x1F300 + v % 0x400);
      default:
        put(' ');
        put(0x600 + v % 0x800);
        return put(0x600 + (v >> 12) % 0x800);
    }
  }

  SplitMix64 random_;
};

}  // namespace

std::string adversarial_text(std::uint64_t seed, std::uint64_t pieces) {
  Writer writer(seed);
  for (std::uint64_t i = 0; i < pieces; ++i) writer.piece();
  return std::move(writer.text);
}

}  // namespace llmtrain::data
