// Standard input, output and error of a program that was started without some of them.
#pragma once

namespace mtrain {

// Opens /dev/null for those that are closed (`mtrain r.yaml >&-`). Otherwise the next file or
// socket would get the descriptor, and the program's output would be written into it. main() calls
// it before anything else is opened.
void open_closed_standard_streams();

}  // namespace mtrain
