#pragma once
/// The files that `data.sources` names, and what is made of their text once and kept in the cache:
/// cleaning, tokenizer, token sets.

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/data/prepare.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Files of data.sources; DataError if there are none, RecipeError for keys of text in a source of
/// token files.
std::vector<data::SourceFile> source_files(const DataSection& section);
/// Those of them that hold text, and those that hold tokens.
std::vector<data::SourceFile> text_of(const std::vector<data::SourceFile>& files);
std::vector<data::SourceFile> tokens_of(const std::vector<data::SourceFile>& files);
data::HeldOutRule held_out_rule(const DataSection& section);

/// Reads the documents of text files whose names are wanted and that `cleaning`, if any, keeps.
void for_each_document(const std::vector<data::SourceFile>& files,
                       const std::function<bool(std::string_view)>& wanted,
                       const std::function<void(data::Document&&)>& visit,
                       const data::Cleaning* cleaning = nullptr);

/// The sources of each part of the corpus: all of them, or one of a mixture.
std::vector<std::vector<data::SourceFile>> files_of_parts(
    const DataSection& section, const std::vector<data::SourceFile>& files);

data::CleaningRequest cleaning_request(const DataSection& section);
std::filesystem::path cleaning_directory(const DataSection& section,
                                         const std::vector<data::SourceFile>& files);
/// What data.cleaning drops of the text files, found once and kept in the cache; null if it asks
/// for nothing. RecipeError if it asks for something and there is no text.
std::shared_ptr<const data::Cleaning> open_cleaning(const DataSection& section,
                                                    const std::vector<data::SourceFile>& files);

/// The recipe's tokenizer: read, or trained on the training documents that stay once and kept in
/// the cache. RecipeError if it is to be trained beside token files, whose ids are another one's.
std::shared_ptr<const data::Tokenizer> open_tokenizer(
    const Recipe& recipe, const std::vector<data::SourceFile>& files,
    const std::shared_ptr<const data::Cleaning>& cleaning);

/// How a token set is made of text files, and where it is kept.
struct TokenSetPlace {
  data::PrepareOptions options;
  std::filesystem::path directory;
};
TokenSetPlace token_set_place(const DataSection& section,
                              const std::vector<data::SourceFile>& files,
                              const data::Tokenizer& tokenizer, data::Part part,
                              const std::shared_ptr<const data::Cleaning>& cleaning);

}  // namespace llmtrain::train
