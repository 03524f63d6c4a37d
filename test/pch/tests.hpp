// What nearly every test includes, compiled once for each program. It saves time only: who uses a header includes it.

#include "support/catch.hpp"

#include <verbena/format.hpp>
#include <verbena/verbena.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>
