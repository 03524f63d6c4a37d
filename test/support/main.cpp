// The main program of every test executable: one line per test case, `pass`, `FAIL` or `skip`, after the details of
// what failed, and a last line that counts them. Exit status: 0, 1 when a test case failed, 77 when all were skipped.

#if defined(__SANITIZE_ADDRESS__)
#define CATCH_CONFIG_NO_POSIX_SIGNALS // the sanitizer reports a crash better
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CATCH_CONFIG_NO_POSIX_SIGNALS
#endif
#endif
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"
#include "deadline.hpp"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

struct {
    bool started = false;
    unsigned passed = 0;
    unsigned failed = 0;
    unsigned skipped = 0;
    std::optional<std::string> skip_reason; // of the running test case
} tally;

support::watchdog* watching = nullptr;

#if defined(CATCH_VERSION_MAJOR) && CATCH_VERSION_MAJOR >= 3
using reporter_base = Catch::StreamingReporterBase;
#else
struct reporter_base : Catch::StreamingReporterBase<reporter_base> {
    using StreamingReporterBase::StreamingReporterBase;
};
#endif

class line_reporter : public reporter_base {
  public:
    using reporter_base::reporter_base;

    static std::string getDescription() { return "one line per test case, after the details of what failed"; }

    void testRunStarting(const Catch::TestRunInfo& info) override {
        reporter_base::testRunStarting(info);
        tally.started = true;
    }

    void testCaseStarting(const Catch::TestCaseInfo& info) override {
        reporter_base::testCaseStarting(info);
        name_ = info.name;
        tally.skip_reason.reset();
        start_ = std::chrono::steady_clock::now();
        watching->begin(name_);
    }

    void assertionStarting(const Catch::AssertionInfo&) override {}

    // Catch2 v2 asks whether to forget the messages, v3 asks nothing.
    using forget_messages =
        decltype(std::declval<reporter_base&>().assertionEnded(std::declval<const Catch::AssertionStats&>()));
    forget_messages assertionEnded(const Catch::AssertionStats& stats) override {
        if (!stats.assertionResult.isOk()) print_failure(stats);
        return forget_messages(true);
    }

    void testCaseEnded(const Catch::TestCaseStats& stats) override {
        watching->end();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
        if (stats.totals.testCases.failed > 0) {
            ++tally.failed;
            std::printf("FAIL  %s (%.1f s)\n", name_.c_str(), took.count());
        } else if (tally.skip_reason) {
            ++tally.skipped;
            std::printf("skip  %s: %s\n", name_.c_str(), tally.skip_reason->c_str());
        } else {
            ++tally.passed;
            std::printf("pass  %s (%.1f s)\n", name_.c_str(), took.count());
        }
        std::fflush(stdout);
        reporter_base::testCaseEnded(stats);
    }

  private:
    void print_failure(const Catch::AssertionStats& stats) {
        const auto& result = stats.assertionResult;
        std::printf("%s:%zu: failed in \"%s\"", result.getSourceInfo().file, result.getSourceInfo().line,
                    name_.c_str());
        for (std::size_t i = 1; i < m_sectionStack.size(); ++i) std::printf(" / %s", m_sectionStack[i].name.c_str());
        std::printf("\n");
        if (result.hasExpression()) std::printf("  %s\n", result.getExpressionInMacro().c_str());
        if (result.hasExpandedExpression()) std::printf("  with: %s\n", result.getExpandedExpression().c_str());
        if (result.hasMessage()) std::printf("  says: %s\n", std::string(result.getMessage()).c_str());
        for (const auto& info : stats.infoMessages)
            if (info.type == Catch::ResultWas::Info) std::printf("  note: %s\n", info.message.c_str());
        std::fflush(stdout);
    }

    std::string name_;
    std::chrono::steady_clock::time_point start_;
};

CATCH_REGISTER_REPORTER("lines", line_reporter)

} // namespace

void support::skip(std::string reason) { tally.skip_reason = std::move(reason); }

int main(int count, char** arguments) {
    support::watchdog watchdog;
    watching = &watchdog;
    std::vector<const char*> with_reporter(arguments, arguments + count);
    with_reporter.insert(with_reporter.begin() + 1, {"--reporter", "lines"});
    const int status = Catch::Session().run(static_cast<int>(with_reporter.size()), with_reporter.data());
    if (!tally.started) return status; // it listed, or did not understand

    std::printf("%u passed, %u failed, %u skipped\n", tally.passed, tally.failed, tally.skipped);
    if (tally.passed + tally.failed + tally.skipped == 0) std::fprintf(stderr, "no test case has that name\n");
    if (tally.failed > 0 || status != 0) return 1;
    if (tally.passed > 0) return 0;
    return tally.skipped > 0 ? 77 : 1;
}
