#pragma once

// A test case that hangs fails with its state printed: one thread watches the running test case and ends the process
// when its time is over. The limit is 120 s; VERBENA_TEST_SECONDS sets another and scales those that tests ask for.

#include <chrono>
#include <functional>
#include <list>
#include <string>

namespace support {

/// While it lives, the running test case has `limit` from its construction on; the limit around it stands still.
class deadline {
  public:
    explicit deadline(std::chrono::seconds limit);
    deadline(const deadline&) = delete;
    deadline& operator=(const deadline&) = delete;
    ~deadline();

  private:
    std::chrono::steady_clock::duration remaining_;
};

/// While it lives, an expired test case prints what `print` returns. It is called on the watching thread while the test
/// hangs: it must not wait for a lock that the test may hold, and what it reads may be torn.
class state_printer {
  public:
    explicit state_printer(std::function<std::string()> print);
    state_printer(const state_printer&) = delete;
    state_printer& operator=(const state_printer&) = delete;
    ~state_printer();

  private:
    std::list<std::function<std::string()>>::iterator place_;
};

/// The thread. `main` makes the one of the process and tells it which test case runs.
class watchdog {
  public:
    watchdog();
    watchdog(const watchdog&) = delete;
    watchdog& operator=(const watchdog&) = delete;
    ~watchdog();

    void begin(std::string test);
    void end();
};

} // namespace support
