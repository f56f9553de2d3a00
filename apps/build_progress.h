// Shows how far the tokenizing of text is.
#pragma once
#include <string>

#include "data/build/build.h"

namespace mtrain {

// Updates one line on a terminal, which begins with `label`. Without a terminal it writes nothing.
void show_build_progress(const data::BuildProgress& progress, const std::string& label = {});

}  // namespace mtrain
