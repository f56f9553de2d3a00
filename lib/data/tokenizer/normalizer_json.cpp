#include "data/tokenizer/tokenizer_file.h"

namespace mtrain::data {
namespace {

using Json = TokenizerFile::Json;
using NormalizerStep = Normalizer::Step;

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
  NormalizerStep step{};
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = NormalizerStep::Kind::normal_form;
    step.form = type == "NFC"    ? NormalForm::nfc
                : type == "NFD"  ? NormalForm::nfd
                : type == "NFKC" ? NormalForm::nfkc
                                 : NormalForm::nfkd;
  } else if (type == "Lowercase") {
    step.kind = NormalizerStep::Kind::lowercase;
  } else if (type == "Strip") {
    step.kind = NormalizerStep::Kind::strip;
    step.left = file.flag(node, "strip_left", false);
    step.right = file.flag(node, "strip_right", false);
    part.keeps_cuts = false;
  } else if (type == "Prepend") {
    step.kind = NormalizerStep::Kind::prepend;
    step.content = file.text(node, "prepend", where);
    part.keeps_cuts = false;
  } else if (type == "Replace") {
    step.kind = NormalizerStep::Kind::replace;
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
