#include "data/tokenizer/tokenizer_file.h"

namespace mtrain::data {
namespace {

using Json = TokenizerFile::Json;
using Step = Normalizer::Step;

void add_normalizer(const TokenizerFile& file, const Json& node, const std::string& where,
                    NormalizerPart& part) {
  if (node.is_null()) return;
  const std::string type = file.text(node, "type", where);
  if (type == "Sequence") {
    const Json& list = file.list(node, "normalizers", where);
    for (size_t i = 0; i < list.size(); ++i)
      add_normalizer(file, list[i], fmt::format("{}.normalizers[{}]", where, i), part);
    return;
  }
  Step step{};
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = Step::Kind::normal_form;
    step.form = type == "NFC"    ? NormalForm::nfc
                : type == "NFD"  ? NormalForm::nfd
                : type == "NFKC" ? NormalForm::nfkc
                                 : NormalForm::nfkd;
  } else if (type == "Lowercase") {
    step.kind = Step::Kind::lowercase;
  } else if (type == "Strip") {
    step.kind = Step::Kind::strip;
    step.left = file.flag(node, "strip_left", false);
    step.right = file.flag(node, "strip_right", false);
    part.keeps_cuts = false;
  } else if (type == "Prepend") {
    step.kind = Step::Kind::prepend;
    step.content = file.text(node, "prepend", where);
    part.keeps_cuts = false;
  } else if (type == "Replace") {
    step.kind = Step::Kind::replace;
    step.content = file.text(node, "content", where);
    auto pattern = file.pattern(node, where);
    step.pattern = std::move(pattern.regex);
    if (!step.pattern) step.literal = std::move(pattern.source);
    part.keeps_cuts = false;
  } else {
    file.unsupported(fmt::format("{} {}", where, type),
                     "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace and Sequence are");
  }
  part.normalizer.add(std::move(step));
}

}  // namespace

NormalizerPart read_normalizer(const TokenizerFile& file) {
  NormalizerPart part;
  add_normalizer(file, TokenizerFile::member(file.root, "normalizer"), "normalizer", part);
  return part;
}

}  // namespace mtrain::data
