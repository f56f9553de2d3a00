// Standard input, output and error of a program that was started without some of them.
#pragma once

namespace mtrain {

// Opens /dev/null instead of those that are closed (`mtrain r.yaml >&-`). Otherwise the next file
// or socket would get the descriptor, and what the program prints would be written into it.
// main() calls it before anything else is opened.
void open_closed_standard_streams();

}  // namespace mtrain
