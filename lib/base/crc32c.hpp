#pragma once
/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, RFC 3720 appendix B.4).

#include <cstdint>
#include <string_view>

namespace llmtrain {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace llmtrain
