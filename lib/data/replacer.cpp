#include "lib/data/replacer.hpp"

#include "lib/data/json_field.hpp"

namespace llmtrain::data {

Replacer::Replacer(const Field& field)
    : where_(field.where()), content_(field["content"].string()) {
  const Field pattern = field["pattern"];
  const std::string kind = pattern.only_key();
  require<DataError>(kind == "Regex" || kind == "String", "{}: neither a String nor a Regex; {}",
                     pattern.where(), kSaveAgain);
  if (kind == "Regex") {
    try {
      regex_.emplace(pattern["Regex"].string());
    } catch (const DataError& e) {
      fail<DataError>("{}: {}", pattern["Regex"].where(), e.what());
    }
    return;
  }
  literal_ = pattern["String"].string();
  require<DataError>(!literal_.empty(), "{}: an empty text; {}", pattern["String"].where(),
                     kSaveAgain);
}

void Replacer::append(std::string_view text, std::string& out, std::size_t limit) const {
  const auto add = [&](std::size_t from, std::size_t to, std::string_view content) {
    out.append(text, from, to - from).append(content);
    require<DataError>(out.size() <= limit,
                       "{} makes a text longer than {} bytes out of a short one; {}", where_, limit,
                       kSaveAgain);
  };
  std::size_t done = 0;
  if (!regex_) {
    for (std::size_t at = 0; (at = text.find(literal_, done)) != text.npos;) {
      add(done, at, content_);
      done = at + literal_.size();
    }
  } else {
    Regex::Matcher matcher(*regex_);
    const bool has_added = has_added_characters(text);
    std::size_t begin = 0;
    std::size_t end = 0;
    while (done < text.size() && matcher.find(text, done, has_added, begin, end)) {
      add(done, begin, content_);
      done = end;
    }
  }
  add(done, text.size(), "");
}

}  // namespace llmtrain::data
