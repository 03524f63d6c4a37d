#pragma once

namespace header {

/// Names a header that was compiled into this program.
struct listed {
    explicit listed(const char* name);
};

} // namespace header
