#include "devx_rig.hpp"

#include "support/fdevx.hpp"

#include <cerrno>
#include <string>
#include <system_error>

namespace devx {

namespace fdevx = support::fdevx;

const char* const test_device::name = "fdevx0";
const char* const test_device::without_devx = "rxe0";
const bool test_device::simulated = false;
const std::uint64_t test_device::allocations_of_issue = 0;

namespace {

void require(int code, const char* what) {
    if (code != 0) throw std::system_error(code, std::generic_category(), what);
}
void set(const char* parameter, std::uint64_t value) { require(fdevx::set(parameter, value), parameter); }
/// False: it names nothing that is there.
bool reaches(const char* parameter, const std::string& value) {
    const int code = fdevx::set(parameter, value);
    if (code != ENOENT) require(code, parameter);
    return code == 0;
}

} // namespace

void test_device::reset() { require(fdevx::reset(), "reset"); }
void test_device::remove() { set("remove", 1); }
void test_device::insert() { set("insert", 1); }

std::uint64_t test_device::in_flight() const {
    const fdevx::ledger counts;
    return counts.accepted - counts.completed - counts.cancelled;
}
void test_device::hold() { set("hold", 1); }
void test_device::release() { set("hold", 0); }
bool test_device::release_oldest() { return reaches("release", "oldest"); }
void test_device::release_shuffled(std::minstd_rand& random) {
    set("shuffle", random()); // which is never 0
    set("hold", 0);
    set("hold", 1);
    set("shuffle", 0);
}

void test_device::refuse(std::uint8_t status, std::uint32_t syndrome, std::uint32_t count) {
    require(fdevx::set("refuse", std::to_string(status) + ' ' + std::to_string(syndrome) + ' ' + std::to_string(count)),
            "refuse");
}
void test_device::lose(std::uint32_t count) { set("lose", count); }
void test_device::throttle(std::uint32_t limit) { set("throttle", limit); }
void test_device::old_kernel(bool on) { set("old_kernel", on ? 1 : 0); }
void test_device::window(std::size_t bytes) { set("window", bytes); }

bool test_device::raise(const thing* of, std::uint16_t event, std::uint64_t number) {
    return reaches("raise", std::to_string(of != nullptr ? of->id : 0) + ' ' + std::to_string(event) + ' ' +
                                std::to_string(number));
}
void test_device::lose_events(mlx5dv_devx_event_channel*, std::uint32_t count) { set("lose_events", count); }

} // namespace devx
