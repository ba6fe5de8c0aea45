#include "tests/unit/data/support.hpp"

#include <array>

#include "lib/base/utf8.hpp"

namespace llmtrain::data {

std::string generated_document(std::uint64_t seed) {
  static constexpr std::array<std::string_view, 27> kFixed = {
      "'s",           "'LL",        "'\u017f",
      "n't",          "\n",         "\n\n",
      "\t",           "\r\n",       "\u180e",
      "\u00a0",       "\u3000",     "\xC2\x85",
      "std::",        "template<",  "<|endoftext|>",
      "<|pad|>",      "<|pad|>>",   "<|",
      "\u00e9",       "e\u0301",    "\u212a",
      "\u4e2d\u6587", "\U0001f600", "\U0001f469\u200d\U0001f467",
      "\u0660\u0661", "\u00b2",     "\u2167"};
  static constexpr std::array<std::string_view, 10> kCommon = {
      "the",      "return",    "const", "value", "type",
      "operator", "namespace", "int",   "size",  "iterator"};
  constexpr int kPieces = 1500;
  SplitMix64 random(seed);
  std::string text;
  for (int piece = 0; piece < kPieces; ++piece) {
    const std::uint64_t r = random();
    const std::uint64_t v = r >> 8;
    switch (r % 8) {
      case 0:
        for (std::uint64_t i = 0; i < 1 + v % 7; ++i)
          text += static_cast<char>('a' + random() % 26);
        break;
      case 1:
        text.append(1 + v % 4, ' ');
        break;
      case 2:
        text += std::to_string(v % 100000);
        break;
      case 3:
        text += kFixed[v % kFixed.size()];
        break;
      case 4: {
        const auto code_point = static_cast<std::uint32_t>(1 + v % 0x10FFFF);
        append_utf8(code_point >= 0xD800 && code_point <= 0xDFFF ? '?' : code_point, text);
        break;
      }
      case 5:
        append_utf8(static_cast<std::uint32_t>(0xA0 + v % 0x2F60), text);
        break;
      case 6:
        text += ' ';
        text += kCommon[v % kCommon.size()];
        break;
      default:
        text += "_;(){}[]<>=+-*/&|!,."[v % 20];
    }
  }
  return text;
}

}  // namespace llmtrain::data
