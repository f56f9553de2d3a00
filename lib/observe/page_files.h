// The parts of the report's page that are compiled into the program.
#pragma once
#include <string_view>

namespace mtrain::observe {

std::string_view chart_js();     // Chart.js, which draws the charts
std::string_view page_script();  // report/page.js
std::string_view page_style();   // report/page.css

}  // namespace mtrain::observe
