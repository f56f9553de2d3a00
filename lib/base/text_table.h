// Tables of text, for files and for terminals of any width.
#pragma once
#include <string>
#include <vector>

namespace mtrain {

struct TableColumn {
  std::string head;
  int least = 0;  // minimum width; of a right-aligned column with the gap before it
  enum class Align { left, right } align = Align::right;
};

// Returns lines of aligned cells. If they are longer than `width`, each row is stacked instead: its
// first cell, and below it "head: cell, head: cell". A width of 0 means no limit.
std::string text_table(const std::vector<TableColumn>& columns,
                       const std::vector<std::vector<std::string>>& rows, int width);

// Lays out the tables of a Markdown text by text_table(), and wraps its other lines.
std::string markdown_for_terminal(const std::string& markdown, int width);

}  // namespace mtrain
