#include "observe/page_files.h"

// The assembler copies a file into the read-only data. The build defines the paths.
#define MT_EMBED(NAME, PATH)       \
  asm(".pushsection .rodata\n"     \
      ".global mtrain_file_" #NAME \
      "\n"                         \
      "mtrain_file_" #NAME         \
      ":\n"                        \
      ".incbin \"" PATH            \
      "\"\n"                       \
      ".global mtrain_file_" #NAME \
      "_end\n"                     \
      "mtrain_file_" #NAME         \
      "_end:\n"                    \
      ".popsection\n");            \
  extern "C" const char mtrain_file_##NAME[], mtrain_file_##NAME##_end[]

MT_EMBED(chart_js, MTRAIN_CHART_JS);
MT_EMBED(page_script, MTRAIN_PAGE_SCRIPT);
MT_EMBED(page_style, MTRAIN_PAGE_STYLE);

namespace mtrain::observe {

std::string_view chart_js() { return {mtrain_file_chart_js, mtrain_file_chart_js_end}; }
std::string_view page_script() { return {mtrain_file_page_script, mtrain_file_page_script_end}; }
std::string_view page_style() { return {mtrain_file_page_style, mtrain_file_page_style_end}; }

}  // namespace mtrain::observe
