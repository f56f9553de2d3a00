#include "plan/stack_file.h"

#include <filesystem>
#include <set>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/load/read_section.h"

namespace mtrain::plan {

namespace fs = std::filesystem;

std::string print_stack(const StackFile& stack, const std::string& comment) {
  MT_CHECK(stack.kind, "a stack without a kind of GPUs");
  std::string text;
  std::string_view lines = comment;
  if (lines.ends_with('\n')) lines.remove_suffix(1);
  for (const std::string& line : split(lines, '\n'))
    text += line.empty() ? "#\n" : "# " + line + "\n";
  text += fmt::format("gpu: {}\nconstants:\n", enum_name(*stack.kind));
  for_each_constant([&](const auto& field) {
    text += fmt::format("  {}: {:.4g}\n", field.name, stack.constants.*field.member);
  });
  return text;
}

StackFile read_stack_text(const std::string& text, const std::string& source,
                          Diagnostics& diagnostics) {
  Diagnostics own;
  StackFile stack;
  recipe::read_section(text, source, stack, own);
  if (!stack.kind && !own.reported("gpu"))
    own.add("gpu", "is missing", "write the kind of the GPUs, such as gpu: h100");
  diagnostics.add_source(source);
  for (const recipe::Diagnostic& d : own.sorted())
    diagnostics.add_at(d.severity, d.location, d.field, d.reason, d.hint);
  return stack;
}

StackConstants stack_of(const Cluster& cluster, const std::vector<std::string>& recipe_folders,
                        Diagnostics& diagnostics) {
  std::vector<fs::path> folders{fs::path(cluster.source).parent_path() / "stacks"};
  for (const std::string& folder : recipe_folders)
    folders.push_back(fs::path(folder) / "clusters/stacks");
  const std::string ending = fmt::format("_{}.yaml", enum_name(cluster.kind));
  std::set<std::string> ready;
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (const std::string file = entry.path().filename().string(); file.ends_with(ending))
        ready.insert(file.substr(0, file.size() - ending.size()));
    const std::string path = (folder / (cluster.stack + ending)).string();
    if (!fs::is_regular_file(path, ignored)) continue;
    const StackFile stack = read_stack_text(read_file(path), path, diagnostics);
    if (stack.kind && *stack.kind != cluster.kind)
      diagnostics.add_at(recipe::Severity::error, {path, 0, 0}, "gpu",
                         fmt::format("is {}, but the file's name and the cluster have {}",
                                     enum_name(*stack.kind), enum_name(cluster.kind)));
    return stack.constants;
  }
  std::string names;
  for (const std::string& name : ready) names += (names.empty() ? "" : ", ") + name;
  diagnostics.add_at(
      recipe::Severity::error, {cluster.source, 0, 0}, "stack",
      fmt::format("{} has no fitted constants for {}", cluster.stack, enum_name(cluster.kind)),
      names.empty() ? "remove stack: the prediction then takes the data sheets"
                    : "stacks with constants: " + names);
  return {};
}

}  // namespace mtrain::plan
