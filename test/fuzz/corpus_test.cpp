// Runs every file of a folder as the fuzz target does, with any compiler.
//
// usage: verbena-fuzz-corpus FOLDER

#include "program.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

constexpr unsigned seconds_per_input = 60;
std::string running;

void on_signal(int number) {
    std::printf("%s: signal %d\nFAIL  fuzz corpus\n0 passed, 1 failed, 0 skipped\n", running.c_str(), number);
    std::fflush(stdout);
    std::_Exit(1);
}

} // namespace

int main(int count, char** arguments) {
    if (count != 2 || !std::filesystem::is_directory(arguments[1])) {
        std::fprintf(stderr, "usage: verbena-fuzz-corpus FOLDER\n");
        return 2;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const int number : {SIGABRT, SIGSEGV, SIGALRM}) std::signal(number, on_signal);
    for (const auto& file : files) {
        running = file.filename();
        std::ifstream in(file, std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        alarm(seconds_per_input);
        fuzz::run({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
        alarm(0);
    }
    std::printf("%s  fuzz corpus: %zu inputs\n%d passed, %d failed, 0 skipped\n", files.empty() ? "FAIL" : "pass",
                files.size(), files.empty() ? 0 : 1, files.empty() ? 1 : 0);
    return files.empty() ? 1 : 0;
}
