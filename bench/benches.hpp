#pragma once

// The benches, one in each file of the same name. Each adds its rows; `line.device` is a name.

#include "harness.hpp"

namespace bench {

void ping_pong(const command_line& line, std::vector<row>& rows);
void resume(const command_line& line, std::vector<row>& rows);
void throughput(const command_line& line, std::vector<row>& rows);
void wakeup(const command_line& line, std::vector<row>& rows);
void scale(const command_line& line, std::vector<row>& rows);
void policy(const command_line& line, std::vector<row>& rows);
void devx(const command_line& line, std::vector<row>& rows);

} // namespace bench
