#include "base/error.h"
#include "data/tokenizer/tokenizer_file.h"

namespace mtrain::data {
namespace {

using Json = TokenizerFile::Json;
using DecoderStep = Decoder::Step;

void add_decoder(const TokenizerFile& file, const Json& node, const std::string& where,
                 DecoderPart& part, int& steps) {
  const std::string type = file.text(node, "type", where);
  if (type == "Sequence") {
    const Json& list = file.list(node, "decoders", where);
    for (size_t i = 0; i < list.size(); ++i)
      add_decoder(file, list[i], fmt::format("{}.decoders[{}]", where, i), part, steps);
    return;
  }
  DecoderStep step{};
  if (type == "ByteLevel") {
    if (steps > 0) file.unsupported(where + " ByteLevel after other decoders");
    part.byte_level = true;
    ++steps;
    return;
  }
  if (type == "Fuse") {
    step.kind = DecoderStep::Kind::fuse;
    if (part.byte_level) return;  // its text is already fused
  } else if (type == "ByteFallback") {
    step.kind = DecoderStep::Kind::byte_fallback;
  } else if (type == "Replace") {
    step.kind = DecoderStep::Kind::replace;
    step.content = file.text(node, "content", where);
    auto pattern = file.pattern(node, where);
    step.pattern = std::move(pattern.regex);
    if (!step.pattern) step.literal = std::move(pattern.source);
  } else if (type == "Strip") {
    step.kind = DecoderStep::Kind::strip;
    step.content = file.text(node, "content", where);
    file.require(!step.content.empty(), where + ".content is empty");
    step.start = size_t(file.count(node, "start", where));
    step.stop = size_t(file.count(node, "stop", where));
  } else if (type == "Metaspace") {
    step.kind = DecoderStep::Kind::metaspace;
    step.literal = file.text(node, "replacement", where);
    file.require(!step.literal.empty(), where + ".replacement is empty");
    step.drop_first = file.flag(node, "add_prefix_space", true);
    if (!TokenizerFile::member(node, "prepend_scheme").is_null())
      step.drop_first = file.text(node, "prepend_scheme", where) != "never";
  } else {
    file.unsupported(fmt::format("{} {}", where, type),
                     "ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace and Sequence are");
  }
  if (part.byte_level) file.unsupported(fmt::format("{} {} after ByteLevel", where, type));
  part.decoder.add(std::move(step), file.place(where));
  ++steps;
}

}  // namespace

DecoderPart read_decoder(const TokenizerFile& file, bool byte_level) {
  DecoderPart part;
  const Json& node = TokenizerFile::member(file.root, "decoder");
  if (!node.is_null()) {
    int steps = 0;
    add_decoder(file, node, "decoder", part, steps);
  } else if (byte_level) {
    part.byte_level = true;
  } else {
    part.decoder.add({.kind = DecoderStep::Kind::join, .content = " "}, file.place("decoder"));
  }
  return part;
}

}  // namespace mtrain::data
