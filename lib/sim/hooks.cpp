#include "hooks.hpp"

#include "device.hpp"

namespace verbena::sim {
namespace {

thread_local bool inside_point = false;

} // namespace

std::uint64_t dice::next() noexcept { // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

void reach(device& d, point where, ibv_cq* cq, ibv_qp* qp) {
    if (inside_point) return;
    std::function<void(const point_reached&)> function;
    {
        const locked guard(d);
        function = d.control.points[static_cast<std::size_t>(where)];
    }
    if (!function) return;
    struct flag {
        flag() { inside_point = true; }
        ~flag() { inside_point = false; }
    } const inside;
    function({where, cq, qp});
}

std::optional<fault> fault_of(device& d, std::string_view verb) {
    const locked guard(d);
    ++d.calls;
    auto& faults = d.control.faults;
    const auto [begin, end] = faults.equal_range(verb);
    std::optional<fault> strikes;
    for (auto at = begin; at != end;) {
        fault& f = at->second;
        if (f.call > 1) {
            --f.call;
            ++at;
            continue;
        }
        if (!strikes) strikes = f;
        at = --f.times == 0 ? faults.erase(at) : std::next(at);
    }
    return strikes;
}

int answer(const fault& f, convention natural) noexcept {
    switch (f.convention == convention::natural ? natural : f.convention) {
    case convention::negative_errno: return -f.value;
    case convention::minus_one_and_errno: errno = f.value; return -1;
    default: return f.value;
    }
}

} // namespace verbena::sim
