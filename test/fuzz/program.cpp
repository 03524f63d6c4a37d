#include "program.hpp"

#include "backend.hpp"
#include "input.hpp"
#include "memory.hpp"

#include "epoll_backend.hpp"
#include "reactor_core.hpp"
#include "ring.hpp"

#include <verbena/format.hpp>
#include <verbena/verbena.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

namespace fuzz {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t reactor_count = 2;
constexpr std::size_t queue_count = 4;
constexpr std::size_t pair_count = 6;
constexpr std::size_t inbox_count = 3;
constexpr std::size_t scope_count = 4;
constexpr std::size_t stream_count = 2;
constexpr std::size_t most_messages = 12;
constexpr std::size_t most_children = 8;
constexpr int most_steps = 250;
constexpr std::uint64_t most_operations = 2000;
constexpr int most_depth = 3; ///< of steps inside the steps of coroutines
constexpr std::uint32_t qkey = 0x1234;

/// What a coroutine or a function of this program throws.
struct thrown {};

/// How long an operation may take.
struct limit {
    enum class kind : std::uint8_t { none, timeout, stop, both };
    kind what = kind::none;
    nanoseconds timeout{};
    std::size_t token = 0;
};

/// What a coroutine does when its operation has ended.
struct sequel {
    std::uint8_t what = 0;
    std::uint8_t which = 0;
    std::uint8_t how = 0;
};

class program {
  public:
    explicit program(std::span<const std::uint8_t> bytes);
    program(const program&) = delete;
    program& operator=(const program&) = delete;
    ~program();

    void run();

  private:
    using step = void (program::*)();
    static const std::array<step, 52> steps;

    /// One awaited operation.
    class ticket {
      public:
        ticket(program& p, const char* what) : program_(p), what_(what) {
            ++p.issued_;
            p.open_.push_back(this);
        }
        ticket(const ticket&) = delete;
        ticket& operator=(const ticket&) = delete;
        ~ticket() {
            if (!ended_) ++program_.abandoned_;
            std::erase(program_.open_, this);
        }
        void ended() {
            if (std::exchange(ended_, true)) fail("an operation ended twice");
            ++program_.ended_;
        }
        const char* what() const noexcept { return ended_ ? "ended" : what_; }

      private:
        program& program_;
        const char* what_;
        bool ended_ = false;
    };

    /// While it lives the scope must not be destroyed.
    class counted {
      public:
        explicit counted(int& count) noexcept : count_(count) { ++count_; }
        counted(const counted&) = delete;
        counted& operator=(const counted&) = delete;
        ~counted() { --count_; }

      private:
        int& count_;
    };

    // The world.
    static sim::control fresh(const char* name);
    std::unique_ptr<vb::reactor> make_reactor();
    void set_up();
    void make_queue(std::size_t index);
    bool attach(std::size_t index, std::size_t reactor);
    void make_pair(std::size_t index, vb::queue_pair_type type, bool shared);
    void connect(std::size_t a, std::size_t b);
    void end_orderly();
    void end_scopes();
    void end_objects();
    void balance() const;

    // Choices.
    limit some_limit();
    sequel some_sequel();
    nanoseconds some_time();
    vb::queue_pair* some_pair();
    std::size_t number_of(const vb::queue_pair& qp) const;
    vb::send_options some_options();
    vb::slice_list some_slices(const lease& memory, std::uint32_t bytes);
    vb::remote_slice some_remote(std::uint32_t bytes);
    vb::work_request some_request(const lease& memory);
    std::uint32_t some_length() { return in_.odd() ? in_.number<std::uint16_t>() % 128 : 8 * in_.between(0, 8); }
    lease some_memory() { return memory_->empty() ? lease() : lease(*memory_); }

    // Coroutines.
    template <class Op>
    vb::task<> await(Op op, limit l, sequel s, [[maybe_unused]] lease memory);
    vb::task<> await_both(vb::recv_operation recv, vb::send_operation send, limit l, sequel s, lease one, lease two);
    vb::task<> await_all(std::vector<vb::task<>> tasks, limit l, sequel s);
    template <class First, class Second>
    vb::task<> await_any(First first, Second second, nanoseconds timeout, sequel s);
    vb::task<> take_message(std::size_t inbox, limit l, sequel s);
    vb::task<> echo(std::size_t pair, vb::message m);
    vb::task<> sleeper(vb::reactor& r, nanoseconds time) { co_await r.sleep_for(time); }
    template <class T>
    void note(const vb::result<T>& outcome);
    void keep(vb::message m);
    void follow(sequel s);
    void spawn(vb::task<> task, std::size_t scope);
    void spawn(vb::task<> task) { spawn(std::move(task), in_.below(scope_count)); }
    template <class Op>
    void start(Op op, lease memory = lease());
    void renew(std::size_t scope);

    // Steps.
    void turns();
    void run_for();
    void device_acts();
    void send();
    void send_immediate();
    void send_datagram();
    void recv();
    void write();
    void read();
    void atomic();
    void chain();
    void flushed();
    void detached();
    void drain();
    void close();
    void destroy_pair();
    void create_pair();
    void connect_pair();
    void ask_pair();
    void create_inbox();
    void destroy_inbox();
    void next();
    void drop_messages();
    void streams();
    void next_event();
    void raise();
    void hold();
    void release();
    void fail_verb();
    void disturb();
    void remove();
    void resize();
    void attach_or_detach();
    void replace_queue();
    void by_hand();
    void parse();
    void format();
    void stop_scope();
    void destroy_scope();
    void join();
    void wait_for_child();
    void request_stop();
    void signals();
    void wait_for_signal();
    void wait_for_time();
    void wait_readable();
    void post_function();
    void both();
    void any();
    void points();
    void small_objects();
    void second_reactor();

    input in_;
    const char* name_;
    sim::control control_;
    std::uint8_t style_;
    std::uint64_t issued_ = 0;
    std::uint64_t ended_ = 0;
    std::uint64_t abandoned_ = 0;
    std::vector<const ticket*> open_;
    int strikes_ = 0;      ///< of the device, at a point
    bool unheard_ = false; ///< a reactor is gone, and resumes nobody any more
    int depth_ = 0;
    std::array<int, scope_count> running_{}; ///< coroutines of that scope that are on the stack
    std::array<int, scope_count> joining_{};
    std::size_t home_ = 0; ///< the scope of the coroutine that begins

    vb::context device_;
    vb::protection_domain domain_;
    std::optional<arena> memory_;
    vb::buffer_pool pool_;
    vb::address_handle way_;
    std::array<vb::poll_slot, 16> slots_;
    int signal_fd_;
    vb::event event_;
    vb::semaphore semaphore_{1};
    std::array<std::stop_source, 2> stops_;
    std::array<std::unique_ptr<vb::reactor>, reactor_count> reactors_;
    std::array<vb::completion_channel, 2> channels_;
    std::array<vb::completion_queue, queue_count> queues_;
    vb::shared_receive_queue srq_;
    std::array<std::optional<vb::queue_pair>, pair_count> pairs_;
    std::array<std::optional<vb::receiver>, inbox_count> inboxes_;
    std::array<std::optional<vb::event_stream>, stream_count> streams_;
    std::vector<vb::message> messages_;
    std::array<std::optional<vb::scope>, scope_count> scopes_;
    std::vector<vb::child<>> children_;
    std::array<vb::memory_slice, 6> many_; ///< more slices than a list holds
};

sim::control program::fresh(const char* name) {
    sim::control control(name);
    control.reset();
    control.insert();
    control.clear_ledger();
    return control;
}

program::program(std::span<const std::uint8_t> bytes)
    : in_(bytes), name_(in_.below(2) == 0 ? "sim0" : "sim1"), control_(fresh(name_)), style_(in_.byte()),
      device_(vb::context::open(name_).value()), domain_(vb::protection_domain::create(device_).value()),
      signal_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    vb::set_log_sink([](vb::log_level level, std::string_view) { static_cast<void>(fmt::format("{}", level)); });
    memory_.emplace(domain_);
    many_.fill(memory_->common(16));
    pool_ = vb::buffer_pool::create(domain_, 4, 64).value();
    const auto gids = device_.gids(1).value();
    way_ = vb::address_handle::create(
               domain_, {.destination = gids.back().gid, .gid_index = static_cast<std::uint8_t>(gids.back().index)})
               .value();
    for (auto& s : scopes_) s.emplace();
}

program::~program() {
    ::close(signal_fd_);
    control_.reset();
}

/// With the manual clock, over io_uring or epoll(7).
std::unique_ptr<vb::reactor> program::make_reactor() {
    const auto policy = std::array{vb::wait_policy::park_at_once(), vb::wait_policy::spin_then_park(microseconds{2}),
                                   vb::wait_policy::spin_forever(), vb::wait_policy::adaptive()}[style_ % 4];
    const bool parks_at_once = policy == vb::wait_policy::park_at_once();
    auto inner = (style_ & 4) != 0 ? vb::detail::make_ring() : vb::detail::make_epoll_backend();
    if (!inner) inner = vb::detail::make_epoll_backend();
    auto backend = std::make_unique<stepping_backend>(control_, std::move(inner).value());
    return std::unique_ptr<vb::reactor>(
        new vb::reactor(vb::detail::access::make_reactor<vb::reactor>(std::make_unique<vb::detail::reactor_core>(
            vb::reactor_options{.wait = policy, .safety_repoll = milliseconds{(style_ & 8) != 0 ? 100 : 0}},
            std::make_unique<device_clock>(control_, nanoseconds{parks_at_once ? 0 : 500}), std::move(backend)))));
}

void program::make_queue(std::size_t index) {
    const bool silent = index == 3; // can only be polled
    auto made = vb::completion_queue::create(
        device_, in_.odd() ? in_.number<std::uint32_t>() : in_.between(1, 64),
        {.channel = silent ? vb::completion_channel() : channels_[index / 2], .comp_vector = in_.odd() ? 1000 : 0});
    note(made);
    if (made) queues_[index] = *made;
}

bool program::attach(std::size_t index, std::size_t reactor) {
    if (!reactors_[reactor]) return false;
    vb::attach_options options;
    if (in_.odd())
        options.foreign = [this](const vb::work_completion& done) {
            static_cast<void>(fmt::format("{}", done));
            if (done.wr_id() % 64 == 63) throw thrown{};
            follow({.what = static_cast<std::uint8_t>(done.wr_id()), .which = 0, .how = 0});
        };
    const auto attached =
        reactors_[reactor]->attach(queues_[index], std::span(slots_).first(in_.below(slots_.size() + 1)), options);
    note(attached);
    return attached.has_value();
}

void program::make_pair(std::size_t index, vb::queue_pair_type type, bool shared) {
    vb::queue_pair_options options{.send_cq = queues_[in_.odd() ? in_.below(queue_count) : 0],
                                   .recv_cq = queues_[in_.odd() ? in_.below(queue_count) : 1],
                                   .max_send = in_.between(1, 6),
                                   .max_recv = in_.between(1, 6),
                                   .max_send_slices = 4,
                                   .max_recv_slices = 2,
                                   .max_inline = 64,
                                   .type = type,
                                   .post_mode = (style_ & 16) != 0 ? vb::post_mode::batched : vb::post_mode::immediate};
    if (shared && srq_) options.srq = srq_;
    if (in_.odd()) {
        switch (in_.below(9)) {
        case 0: options.max_send = in_.number<std::uint32_t>(); break;
        case 1: options.max_recv = in_.number<std::uint32_t>(); break;
        case 2: options.port = in_.byte(); break;
        case 3: options.gid_index = in_.byte(); break;
        case 4: options.keepalive = milliseconds{in_.between(1, 50)}; break;
        case 5: options.access = static_cast<vb::access_flags>(in_.byte() & 15); break;
        case 6: options.max_send_slices = in_.number<std::uint32_t>(); break;
        case 7: options.max_inline = in_.number<std::uint32_t>(); break;
        default: options.max_send_slices = 8; break;
        }
    }
    auto made = vb::queue_pair::create(domain_, options);
    note(made);
    if (made) pairs_[index].emplace(std::move(made).value());
}

void program::connect(std::size_t a, std::size_t b) {
    if (!pairs_[a] || !pairs_[b]) return;
    if (pairs_[a]->type() == vb::queue_pair_type::ud) {
        note(pairs_[a]->activate(qkey));
        return;
    }
    vb::connection_options options;
    if (in_.odd()) {
        options.retry_cnt = in_.byte() % 9;
        options.rnr_retry = in_.byte() % 9;
        options.timeout = in_.byte() % 33;
        options.min_rnr_timer = in_.byte() % 33;
        options.mtu = std::array{0u, 256u, 4096u, 1000u}[in_.below(4)];
        options.rd_atomic = in_.byte();
        options.service_level = in_.byte() % 17;
    }
    const auto remote = vb::endpoint::from_bytes(pairs_[b]->endpoint().to_bytes());
    note(remote);
    if (remote) note(pairs_[a]->connect(*remote, options));
}

/// A connection, attached; what kind is a choice.
void program::set_up() {
    if (in_.below(2) == 0)
        control_.use_manual_clock();
    else
        control_.seed(in_.byte(), {.max_delay = microseconds{in_.between(1, 30)}, .max_batch = in_.between(1, 4)});
    control_.write_late(in_.below(2) == 0);
    reactors_[0] = make_reactor();
    for (auto& channel : channels_) channel = vb::completion_channel::create(device_).value();
    for (std::size_t i = 0; i < queue_count; ++i) make_queue(i);
    attach(0, 0);
    attach(1, 0);
    const auto kind = in_.below(4);
    if (kind == 3) srq_ = vb::shared_receive_queue::create(domain_, {.max_wr = in_.between(1, 8)}).value();
    const auto type = kind == 2 ? vb::queue_pair_type::ud : vb::queue_pair_type::rc;
    for (std::size_t i = 0; i < 2; ++i) make_pair(i, type, kind == 3);
    connect(0, 1);
    connect(1, 0);
}

// ---- Choices.

limit program::some_limit() {
    const auto kind = in_.byte();
    if (kind < 128) return {};
    return {static_cast<limit::kind>(kind % 4), some_time(), in_.below(stops_.size())};
}

sequel program::some_sequel() {
    const auto what = in_.byte();
    if (what < 160) return {};
    return {what, in_.byte(), in_.byte()};
}

nanoseconds program::some_time() {
    const auto b = in_.byte();
    if (b < 128) return nanoseconds{b * 100};
    if (b < 224) return microseconds{(b - 127) * 10};
    if (b == 255) return nanoseconds::max();
    if (b == 254) return nanoseconds{-1};
    return milliseconds{(b - 223) * 5};
}

vb::queue_pair* program::some_pair() {
    const auto first = in_.below(pair_count);
    for (std::size_t i = 0; i < pair_count; ++i)
        if (auto& qp = pairs_[(first + i) % pair_count]) return &*qp;
    return nullptr;
}
std::size_t program::number_of(const vb::queue_pair& qp) const {
    for (std::size_t i = 0; i < pair_count; ++i)
        if (pairs_[i] && &*pairs_[i] == &qp) return i;
    return 0;
}

vb::send_options program::some_options() {
    const auto b = in_.byte();
    return {.signaled = (b & 7) != 1, .solicited = (b & 8) != 0, .fence = (b & 16) != 0};
}

/// What is not signaled, and what is posted by hand, uses common memory: nobody knows when the device has done.
vb::slice_list program::some_slices(const lease& memory, std::uint32_t bytes) {
    if (in_.odd()) {
        switch (in_.below(6)) {
        case 0: return std::span<const vb::memory_slice>(many_).first(in_.below(many_.size() + 1));
        case 1: return vb::memory_slice{memory_->common(8).address, bytes, in_.number<std::uint32_t>()};
        case 2: return vb::memory_slice{in_.number<std::uint64_t>(), bytes, memory_->region().lkey()};
        case 3: return vb::memory_slice{memory_->common(8).address, 0x7fffffff, memory_->region().lkey()};
        case 4: return std::array{memory_->common(8), memory_->common(16), memory_->common(24), memory_->common(32)};
        default: return vb::slice_list();
        }
    }
    return memory.slice(bytes);
}

vb::remote_slice program::some_remote(std::uint32_t bytes) {
    auto remote = memory_->remote(8 * in_.between(0, 63), bytes);
    if (in_.odd()) {
        switch (in_.below(4)) {
        case 0: remote.rkey = in_.number<std::uint32_t>(); break;
        case 1: remote.address = in_.number<std::uint64_t>(); break;
        case 2: remote.address += 1; break;
        default: remote.length = in_.number<std::uint32_t>(); break;
        }
    }
    return remote;
}

vb::work_request program::some_request(const lease& memory) {
    const auto bytes = some_length();
    const auto local = some_slices(memory, bytes);
    const auto options = some_options();
    const auto immediate = in_.odd() ? std::optional<std::uint32_t>(7) : std::nullopt;
    switch (in_.below(6)) {
    case 0: return vb::recv_request{local};
    case 1: return vb::write_request{local, some_remote(bytes), immediate, options.signaled};
    case 2: return vb::read_request{local, some_remote(bytes), options.signaled};
    case 3: return vb::fetch_add_request{memory.slice(8), some_remote(8), 1, options.signaled};
    case 4: return vb::compare_swap_request{memory.slice(8), some_remote(8), 0, 1, options.signaled};
    default: return vb::send_request{local, immediate, options.signaled, options.solicited};
    }
}

// ---- Coroutines.

template <class T>
void program::note(const vb::result<T>& outcome) {
    if (outcome) return;
    const vb::error& e = outcome.error();
    if (e.code().value() == 0 || e.message().find(e.verb()) != 0 || std::string_view(e.verb()).empty())
        fail("an error without a code or a verb");
    static_cast<void>(fmt::format("{}", e));
}

void program::keep(vb::message m) {
    static_cast<void>(fmt::format("{}", m));
    if (messages_.size() < most_messages) messages_.push_back(std::move(m));
}

/// What user code may do where it is resumed.
void program::follow(sequel s) {
    if (s.what == 0 || depth_ >= most_depth) return;
    const counted deeper(depth_);
    switch (s.what % 12) {
    case 0: pairs_[s.which % pair_count].reset(); break;
    case 1: inboxes_[s.which % inbox_count].reset(); break;
    case 2:
        if (const auto& cq = queues_[s.which % queue_count]; cq && reactors_[0]) note(reactors_[0]->detach(cq));
        break;
    case 3: event_.set(); break;
    case 4: semaphore_.release(); break;
    case 5: messages_.clear(); break;
    case 6: control_.release(); break;
    case 7: renew(s.which % scope_count); break;
    case 8: streams_[s.which % stream_count].reset(); break;
    case 9:
        if (auto& qp = pairs_[s.which % pair_count]; qp && !memory_->empty()) {
            lease memory(*memory_);
            const auto slice = memory.slice(s.how % 64);
            spawn(await(qp->send(slice), {}, {}, std::move(memory)), s.which % scope_count);
        }
        break;
    case 10: stops_[s.which % stops_.size()].request_stop(); break;
    default:
        if (auto& scope = scopes_[s.which % scope_count]) scope->request_stop();
        break;
    }
    if (s.how == 99) throw thrown{};
}

/// Destroys a scope, with what runs in it, unless that is on the stack or somebody joins it.
void program::renew(std::size_t scope) {
    if (scopes_[scope] && running_[scope] == 0 && joining_[scope] == 0) scopes_[scope].emplace();
}

void program::spawn(vb::task<> task, std::size_t scope) {
    if (issued_ > most_operations || !scopes_[scope]) return; // or the scope is just being destroyed
    const counted runs(running_[scope]);
    const auto before = std::exchange(home_, scope);
    auto child = scopes_[scope]->spawn(std::move(task));
    home_ = before;
    if (children_.size() < most_children) children_.push_back(std::move(child));
}

template <class Op>
void program::start(Op op, lease memory) {
    const auto l = some_limit();
    const auto s = some_sequel();
    spawn(await(std::move(op), l, s, std::move(memory)));
}

template <class Op>
vb::task<> program::await(Op op, limit l, sequel s, [[maybe_unused]] lease memory) {
    constexpr bool limitable = vb::detail::limitable<Op>;
    using given = vb::detail::await_result<Op>;
    const auto home = home_;
    ticket t(*this, __PRETTY_FUNCTION__);
    try {
        if constexpr (limitable) {
            if (l.what == limit::kind::timeout) {
                auto outcome = co_await vb::with_timeout(std::move(op), l.timeout);
                note(outcome);
            } else if (l.what == limit::kind::stop) {
                auto outcome = co_await vb::with_stop(std::move(op), stops_[l.token].get_token());
                note(outcome);
            } else if (l.what == limit::kind::both) {
                auto outcome =
                    co_await vb::with_timeout(vb::with_stop(std::move(op), stops_[l.token].get_token()), l.timeout);
                note(outcome);
            }
        }
        if (!limitable || l.what == limit::kind::none) {
            if constexpr (std::is_void_v<given>) {
                co_await std::move(op);
            } else {
                auto outcome = co_await std::move(op);
                note(outcome);
            }
        }
    } catch (const std::system_error& e) { // where there is no result, or of a child
        if (e.code().value() == 0) fail("an exception without a code");
    } catch (const thrown&) { // of a child
    }
    t.ended();
    const counted runs(running_[home]);
    follow(s);
}

vb::task<> program::await_both(vb::recv_operation recv, vb::send_operation send, limit l, sequel s,
                               [[maybe_unused]] lease one, [[maybe_unused]] lease two) {
    const auto home = home_;
    ticket t(*this, __PRETTY_FUNCTION__);
    if (l.what == limit::kind::none) {
        auto [got, sent] = co_await vb::when_all(recv, send);
        note(got);
        note(sent);
    } else {
        auto outcome = co_await vb::with_timeout(vb::when_all(recv, send), l.timeout);
        note(outcome);
    }
    t.ended();
    const counted runs(running_[home]);
    follow(s);
}

vb::task<> program::await_all(std::vector<vb::task<>> tasks, limit l, sequel s) {
    const auto home = home_;
    ticket t(*this, __PRETTY_FUNCTION__);
    try {
        if (l.what == limit::kind::none) {
            co_await vb::when_all(std::move(tasks));
        } else {
            auto outcome = co_await vb::with_stop(vb::when_all(std::move(tasks)), stops_[l.token].get_token());
            note(outcome);
        }
    } catch (const thrown&) {}
    t.ended();
    const counted runs(running_[home]);
    follow(s);
}

template <class First, class Second>
vb::task<> program::await_any(First first, Second second, nanoseconds timeout, sequel s) {
    const auto home = home_;
    ticket t(*this, __PRETTY_FUNCTION__);
    try {
        auto outcome = co_await vb::with_timeout(vb::when_any(std::move(first), std::move(second)), timeout);
        note(outcome);
        if constexpr (std::same_as<First, vb::next_operation>)
            if (outcome && outcome->index() == 0) {
                auto& got = std::get<0>(*outcome);
                note(got);
                if (got) keep(std::move(got).value());
            }
    } catch (const std::system_error& e) {
        if (e.code().value() == 0) fail("an exception without a code");
    }
    t.ended();
    const counted runs(running_[home]);
    follow(s);
}

vb::task<> program::take_message(std::size_t inbox, limit l, sequel s) {
    const auto home = home_;
    ticket t(*this, __PRETTY_FUNCTION__);
    vb::result<vb::message> got = vb::error(vb::errc::closed, "next");
    if (l.what == limit::kind::none)
        got = co_await inboxes_[inbox]->next();
    else
        got = co_await vb::with_timeout(inboxes_[inbox]->next(), l.timeout);
    t.ended();
    note(got);
    const counted runs(running_[home]);
    if (got) {
        if (inboxes_[inbox]) static_cast<void>(fmt::format("{}", *inboxes_[inbox]));
        if (s.how % 4 == 1) note(got->reply_address());
        if (s.how % 4 == 2)
            spawn(echo(s.which % pair_count, std::move(got).value()), home);
        else
            keep(std::move(got).value());
    }
    follow(s);
}

/// Sends a message back from where it lies.
vb::task<> program::echo(std::size_t pair, vb::message m) {
    if (!pairs_[pair]) co_return;
    ticket t(*this, __PRETTY_FUNCTION__);
    const auto source = m.source_qp();
    if (pairs_[pair]->type() == vb::queue_pair_type::ud) {
        auto sent = co_await pairs_[pair]->send_to({way_.native_handle(), source, qkey}, m.bytes());
        note(sent);
    } else {
        auto sent = co_await pairs_[pair]->send(m.bytes());
        note(sent);
    }
    t.ended();
}

// ---- Steps: time.

void program::turns() {
    auto& reactor = reactors_[in_.odd() ? 1 : 0];
    if (!reactor) return;
    const auto budget = in_.odd() ? in_.between(1, 4) : 256;
    for (auto left = in_.between(1, 8); left > 0; --left) {
        try {
            note(reactor->poll(budget));
        } catch (const thrown&) {}
    }
}

void program::run_for() {
    auto& reactor = reactors_[in_.odd() ? 1 : 0];
    if (!reactor) return;
    auto time = std::min(some_time(), nanoseconds{milliseconds{150}});
    if (style_ % 4 == 2) time = std::min(time, nanoseconds{microseconds{200}}); // spins
    try {
        reactor->run(sleeper(*reactor, time));
    } catch (const thrown&) {
    } catch (const std::system_error& e) {
        if (e.code() != vb::errc::stopped) throw;
    }
}

void program::device_acts() {
    if (in_.byte() < 128)
        control_.step();
    else
        control_.advance(std::clamp(some_time(), nanoseconds{0}, nanoseconds{milliseconds{150}}));
}

// ---- Steps: operations.

void program::send() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto options = some_options();
    const auto bytes = some_length();
    vb::slice_list local = options.signaled ? some_slices(memory, bytes) : vb::slice_list(memory_->common(bytes));
    if (in_.odd()) local = vb::inline_data(memory.slice(bytes).bytes());
    start(qp->send(local, options), std::move(memory));
}

void program::send_immediate() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto local = some_slices(memory, some_length());
    start(qp->send_with_immediate(local, in_.byte()), std::move(memory));
}

void program::send_datagram() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto local = some_slices(memory, some_length());
    auto* peer = some_pair();
    const auto number = in_.odd() ? in_.number<std::uint32_t>() : peer->qp_num();
    const vb::ud_destination to(in_.odd() ? nullptr : way_.native_handle(), number, in_.odd() ? 1 : qkey);
    start(qp->send_to(to, local), std::move(memory));
}

void program::recv() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto local = in_.odd() ? some_slices(memory, some_length()) : vb::slice_list(memory.slice(arena::slot_bytes));
    start(qp->recv(local), std::move(memory));
}

void program::write() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto options = some_options();
    const auto bytes = some_length();
    const auto local = options.signaled ? some_slices(memory, bytes) : vb::slice_list(memory_->common(bytes));
    const auto remote = some_remote(bytes);
    if (in_.odd())
        start(qp->write_with_immediate(local, remote, 5, options), std::move(memory));
    else
        start(qp->write(local, remote, options), std::move(memory));
}

void program::read() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto bytes = some_length();
    const auto local = some_slices(memory, bytes);
    start(qp->read(local, some_remote(bytes)), std::move(memory));
}

void program::atomic() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto local = memory.slice(in_.odd() ? 4 : 8);
    const auto remote = some_remote(in_.odd() ? 4 : 8);
    if (in_.byte() < 128)
        start(qp->fetch_add(local, remote, 1), std::move(memory));
    else
        start(qp->compare_swap(local, remote, 0, 1), std::move(memory));
}

void program::chain() {
    auto* qp = some_pair();
    if (qp == nullptr || memory_->empty()) return;
    auto memory = some_memory();
    const auto one = some_request(memory), two = some_request(memory);
    if (in_.byte() < 128) {
        start(qp->chain(one, two), std::move(memory));
    } else {
        const auto three = some_request(memory);
        start(qp->chain(one, two, three), std::move(memory));
    }
}

void program::flushed() {
    if (auto* qp = some_pair()) start(qp->flushed());
}

void program::detached() {
    auto* qp = some_pair();
    if (qp == nullptr) return;
    if (in_.byte() < 128) {
        const auto bytes = in_.take(in_.odd() ? 100 : 16);
        note(qp->send_detached(vb::inline_data(std::as_bytes(bytes))));
        return;
    }
    auto buffer = pool_.try_acquire();
    static_cast<void>(fmt::format("{}", pool_));
    if (!buffer) return;
    buffer->resize(in_.below(65));
    static_cast<void>(fmt::format("{}", *buffer));
    vb::pool_buffer given(std::move(*buffer));
    if (in_.odd()) given = vb::pool_buffer();
    note(qp->send_detached(std::move(given)));
}

void program::both() {
    auto* one = some_pair();
    auto* other = some_pair();
    if (one == nullptr || memory_->empty()) return;
    auto first = some_memory();
    if (memory_->empty()) return;
    auto second = some_memory();
    const auto l = some_limit();
    const auto s = some_sequel();
    const auto into = first.slice(arena::slot_bytes), from = second.slice(16);
    if (in_.byte() < 128) {
        spawn(await_both(one->recv(into), other->send(from), l, s, std::move(first), std::move(second)));
        return;
    }
    std::vector<vb::task<>> tasks;
    tasks.push_back(await(one->recv(into), {}, {}, std::move(first))); // as `other` must outlive its end
    tasks.push_back(await(other->send(from), {}, some_sequel(), std::move(second)));
    spawn(await_all(std::move(tasks), l, s));
}

// ---- Steps: queue pairs.

void program::drain() {
    if (auto* qp = some_pair()) start(qp->drain());
}
void program::close() {
    if (auto* qp = some_pair()) start(qp->close());
}
void program::destroy_pair() {
    if (auto* qp = some_pair()) pairs_[number_of(*qp)].reset();
}
void program::create_pair() {
    const auto index = in_.below(pair_count);
    const auto kind = in_.below(4);
    make_pair(index, kind == 2 ? vb::queue_pair_type::ud : vb::queue_pair_type::rc, kind == 3);
}
void program::connect_pair() {
    const auto one = in_.below(pair_count);
    const auto other = in_.odd() ? in_.below(pair_count) : one ^ 1;
    connect(one, other);
    if (!in_.odd()) connect(other, one);
}
void program::ask_pair() {
    auto* qp = some_pair();
    if (qp == nullptr) return;
    const auto state = qp->state();
    note(state);
    if (state) static_cast<void>(fmt::format("{}", *state));
    static_cast<void>(fmt::format("{} {} {}", *qp, qp->endpoint(), qp->max_inline()));
    if (in_.odd()) note(qp->activate(qkey));
}

void program::by_hand() {
    auto* qp = some_pair();
    if (qp == nullptr) return;
    const auto bytes = some_length();
    const auto slice = memory_->common(bytes); // nobody awaits it
    vb::work_request request;
    switch (in_.below(5)) {
    case 0: request = vb::recv_request{slice}; break;
    case 1: request = vb::write_request{slice, some_remote(bytes)}; break;
    case 2: request = vb::read_request{slice, some_remote(bytes)}; break;
    case 3:
        request =
            vb::send_request{slice, 3, in_.byte() < 128, false, false, {way_.native_handle(), qp->qp_num(), qkey}};
        break;
    default: request = vb::send_request{slice}; break;
    }
    static_cast<void>(fmt::format("{} {}", request, request.to));
    note(qp->post(request, in_.byte()));
    const auto& cq = queues_[in_.below(queue_count)];
    const auto polled = cq.poll(std::span(slots_).first(in_.below(4)));
    note(polled);
    if (!polled) return;
    static_cast<void>(fmt::format("{}", *polled));
    for (const auto done : *polled)
        if (in_.odd()) note(vb::address_handle::create(domain_, done, memory_->common(40).bytes()));
}

// ---- Steps: receivers.

void program::create_inbox() {
    auto& inbox = inboxes_[in_.below(inbox_count)];
    const vb::receiver_options options{.depth = in_.odd() ? in_.byte() : in_.between(0, 3),
                                       .message_bytes = in_.odd() ? in_.byte() / 8u : 64};
    if (srq_ && in_.byte() < 128 && reactors_[0]) {
        auto made = vb::receiver::create(*reactors_[0], srq_, options);
        note(made);
        if (made) inbox.emplace(std::move(made).value());
    } else if (auto* qp = some_pair()) {
        auto made = vb::receiver::create(*qp, options);
        note(made);
        if (made) inbox.emplace(std::move(made).value());
    }
}
void program::destroy_inbox() { inboxes_[in_.below(inbox_count)].reset(); }
void program::next() {
    const auto index = in_.below(inbox_count);
    if (!inboxes_[index]) return;
    static_cast<void>(inboxes_[index]->error().message());
    const auto l = some_limit();
    const auto s = some_sequel();
    spawn(take_message(index, l, s));
}
void program::drop_messages() {
    if (in_.byte() < 128)
        messages_.clear();
    else if (!messages_.empty())
        messages_.pop_back();
}

// ---- Steps: asynchronous events.

void program::streams() {
    auto& stream = streams_[in_.below(stream_count)];
    auto& reactor = reactors_[in_.odd() ? 1 : 0];
    if (stream && in_.byte() < 128) {
        static_cast<void>(stream->dropped());
        stream.reset();
    } else if (reactor) {
        auto made = reactor->events(in_.odd() ? vb::context() : device_);
        note(made);
        if (made) stream.emplace(std::move(made).value());
    }
}
void program::next_event() {
    auto& stream = streams_[in_.below(stream_count)];
    if (stream) start(stream->next());
}
void program::raise() {
    constexpr std::array of_pair{IBV_EVENT_QP_FATAL,     IBV_EVENT_QP_REQ_ERR,         IBV_EVENT_QP_ACCESS_ERR,
                                 IBV_EVENT_COMM_EST,     IBV_EVENT_SQ_DRAINED,         IBV_EVENT_PATH_MIG,
                                 IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_QP_LAST_WQE_REACHED};
    switch (in_.below(6)) {
    case 0:
        if (auto* qp = some_pair(); qp != nullptr && qp->native_handle() != nullptr)
            control_.raise(in_.one_of(of_pair), qp->native_handle());
        break;
    case 1:
        if (const auto& cq = queues_[in_.below(queue_count)]) control_.raise(IBV_EVENT_CQ_ERR, cq.native_handle());
        break;
    case 2:
        if (srq_) control_.raise(in_.odd() ? IBV_EVENT_SRQ_ERR : IBV_EVENT_SRQ_LIMIT_REACHED, srq_.native_handle());
        break;
    case 3:
        for (auto left = in_.odd() ? 300 : 1; left > 0; --left) control_.raise(IBV_EVENT_PORT_ERR, 1);
        break;
    case 4: control_.raise(in_.odd() ? IBV_EVENT_DEVICE_FATAL : IBV_EVENT_LID_CHANGE, 1); break;
    default: // those that no library of today knows included, but for IBV_EVENT_WQ_FATAL, which has an element
        control_.raise(in_.odd() ? IBV_EVENT_GID_CHANGE : static_cast<int>(in_.between(IBV_EVENT_WQ_FATAL + 1, 31)), 1);
        break;
    }
}

// ---- Steps: what the device does otherwise.

void program::hold() {
    const auto& cq = queues_[in_.below(queue_count)];
    if (cq && in_.byte() < 128)
        control_.hold(cq.native_handle());
    else
        control_.hold();
}
void program::release() {
    if (in_.byte() < 128) {
        control_.release();
        return;
    }
    const auto held = control_.held();
    if (!held.empty()) control_.release(held[in_.below(held.size())].id);
}

void program::fail_verb() {
    // None that destroys: what the device keeps for ever nobody can give back. And RESET may fail.
    constexpr std::array by_errno{"ibv_post_send", "ibv_post_recv",  "ibv_post_srq_recv", "ibv_modify_qp",
                                  "ibv_resize_cq", "ibv_modify_srq", "ibv_req_notify_cq", "ibv_query_qp"};
    constexpr std::array others{
        "ibv_get_async_event", "ibv_alloc_pd",     "ibv_reg_mr",       "ibv_create_ah",       "ibv_create_comp_channel",
        "ibv_create_cq",       "ibv_get_cq_event", "ibv_create_qp",    "ibv_create_srq",      "ibv_query_port",
        "ibv_query_gid_table", "ibv_open_device",  "ibv_query_device", "ibv_init_ah_from_wc", "ibv_get_device_list"};
    constexpr std::array values{ENOMEM, EINVAL, EIO, EAGAIN, EBUSY, EOPNOTSUPP, ENOSYS, EACCES, ENODEV};
    sim::fault how{.call = in_.between(1, 6),
                   .value = in_.one_of(values),
                   .accepted = in_.between(0, 2),
                   .times = in_.between(1, 3)};
    const auto kind = in_.below(8);
    if (kind < 5) {
        how.convention = static_cast<sim::convention>(in_.below(4));
        control_.fail(in_.one_of(by_errno), how);
    } else if (kind < 7) {
        control_.fail(in_.one_of(others), how);
    } else {
        control_.forgive();
    }
}

void program::disturb() {
    const auto& cq = queues_[in_.below(queue_count)];
    const auto kind = in_.below(7);
    const auto count = in_.between(1, 3);
    if (kind == 0) {
        if (auto* qp = some_pair(); qp != nullptr && qp->native_handle() != nullptr)
            control_.flush_only(qp->native_handle(), count);
        return;
    }
    if (!cq) return;
    switch (kind) {
    case 1: control_.drop_events(cq.native_handle(), count); break;
    case 2: control_.double_events(cq.native_handle(), count); break;
    case 3: control_.spurious_event(cq.native_handle()); break;
    case 4: control_.fail_poll(cq.native_handle(), count); break;
    case 5: control_.redundant_arm_loses(true); break;
    default: control_.write_late(in_.byte() < 128); break;
    }
}

void program::points() {
    const auto where = static_cast<sim::point>(in_.below(sim::point_count));
    const auto kind = in_.below(3);
    if (kind == 0)
        control_.at(where, {});
    else if (kind == 1)
        control_.at(where, [this](const sim::point_reached&) {
            for (const auto& held : control_.held()) control_.release(held.id);
        });
    else
        control_.at(where, [this](const sim::point_reached& at) {
            if (strikes_++ >= 64) return; // an event for each event taken would never end
            if (at.cq != nullptr) control_.spurious_event(at.cq);
            control_.step();
        });
}

void program::remove() {
    if (in_.odd())
        control_.remove();
    else
        control_.insert();
}

// ---- Steps: completion queues and reactors.

void program::resize() {
    const auto& cq = queues_[in_.below(queue_count)];
    note(cq.resize(in_.odd() ? in_.number<std::uint64_t>() : in_.byte()));
}
void program::attach_or_detach() {
    const auto index = in_.below(queue_count);
    const std::size_t reactor = in_.odd() ? 1 : 0;
    if (!reactors_[reactor]) return;
    if (in_.byte() < 128)
        attach(index, reactor);
    else
        note(reactors_[reactor]->detach(in_.odd() ? vb::completion_queue() : queues_[index]));
}
void program::replace_queue() {
    const auto index = in_.below(queue_count);
    if (in_.byte() < 64) channels_[index / 2] = vb::completion_channel::create(device_).value_or(channels_[index / 2]);
    make_queue(index);
    if (!in_.odd()) attach(index, 0);
}
void program::second_reactor() {
    unheard_ = unheard_ || reactors_[1] != nullptr;
    reactors_[1] = in_.byte() < 128 ? make_reactor() : nullptr;
}

// ---- Steps: coroutines.

void program::stop_scope() { scopes_[in_.below(scope_count)]->request_stop(); }
void program::destroy_scope() { renew(in_.below(scope_count)); }
void program::join() {
    const auto joined = in_.below(scope_count - 1);
    const auto in = joined + 1 + in_.below(scope_count - 1 - joined);
    const auto l = some_limit();
    const auto s = some_sequel();
    struct held {
        static vb::task<> join(program& p, std::size_t joined, limit l, sequel s) {
            const auto home = p.home_;
            ticket t(p, __PRETTY_FUNCTION__);
            {
                const counted joins(p.joining_[joined]);
                try {
                    if (l.what == limit::kind::none) {
                        co_await p.scopes_[joined]->join();
                    } else {
                        auto outcome = co_await vb::with_timeout(p.scopes_[joined]->join(), l.timeout);
                        p.note(outcome);
                    }
                } catch (const thrown&) {}
            }
            t.ended();
            const counted runs(p.running_[home]);
            p.follow(s);
        }
    };
    spawn(held::join(*this, joined, l, s), in);
    // Who waits for it could be one for whom it waits.
    if (!children_.empty()) children_.pop_back();
}
void program::wait_for_child() {
    if (children_.empty()) return;
    const auto at = children_.begin() + static_cast<std::ptrdiff_t>(in_.below(children_.size()));
    auto child = std::move(*at);
    children_.erase(at);
    if (in_.odd()) return;
    start(child.wait());
}
void program::request_stop() {
    auto& source = stops_[in_.below(stops_.size())];
    source.request_stop();
    if (in_.byte() < 128) source = std::stop_source();
}
void program::signals() {
    switch (in_.below(6)) {
    case 0: event_.set(); break;
    case 1: event_.reset(); break;
    case 2: static_cast<void>(semaphore_.try_acquire()); break;
    case 3: static_cast<void>(::eventfd_write(signal_fd_, 1)); break;
    case 4: {
        eventfd_t value;
        static_cast<void>(::eventfd_read(signal_fd_, &value));
        break;
    }
    default: semaphore_.release(in_.between(1, 2)); break;
    }
}
void program::wait_for_signal() {
    if (in_.byte() < 128)
        start(event_.wait());
    else
        start(semaphore_.acquire());
}
void program::wait_for_time() {
    auto& reactor = reactors_[in_.odd() ? 1 : 0];
    if (!reactor) return;
    const auto time = some_time();
    if (in_.odd())
        start(reactor->yield());
    else if (time == nanoseconds::max())
        spawn(await(reactor->sleep_for(time), {limit::kind::timeout, microseconds{100}, 0}, some_sequel(), {}));
    else
        start(reactor->sleep_for(time));
}
void program::wait_readable() {
    if (reactors_[0]) start(reactors_[0]->wait_readable(in_.odd() ? -1 : signal_fd_));
}
void program::any() {
    const auto inbox = in_.below(inbox_count);
    auto& stream = streams_[in_.below(stream_count)];
    const auto time = some_time();
    const auto s = some_sequel();
    if (!reactors_[0]) return;
    if (inboxes_[inbox])
        spawn(await_any(inboxes_[inbox]->next(), event_.wait(), time, s));
    else if (stream)
        spawn(await_any(stream->next(), semaphore_.acquire(), time, s));
    else
        spawn(await_any(reactors_[0]->wait_readable(signal_fd_), reactors_[0]->sleep_for(nanoseconds{100}), time, s));
}
void program::post_function() {
    auto& reactor = reactors_[in_.odd() ? 1 : 0];
    if (!reactor) return;
    const auto s = some_sequel();
    if (in_.odd())
        reactor->stop();
    else
        reactor->post([this, s] {
            if (s.how == 98) throw thrown{};
            follow(s);
        });
}

// ---- Steps: small objects, bytes from elsewhere, and text.

void program::parse() {
    const auto bytes = std::as_bytes(in_.take(in_.odd() ? in_.byte() : vb::endpoint::encoded_bytes));
    const auto endpoint = vb::endpoint::from_bytes(bytes);
    note(endpoint);
    if (endpoint) {
        if (*vb::endpoint::from_bytes(endpoint->to_bytes()) != *endpoint) fail("an endpoint changes on its way");
        static_cast<void>(fmt::format("{}", *endpoint));
        if (auto* qp = some_pair()) note(qp->connect(*endpoint));
    }
    if (bytes.size() >= vb::remote_slice::encoded_bytes) {
        const auto remote = vb::remote_slice::from_bytes(bytes.first<vb::remote_slice::encoded_bytes>());
        if (vb::remote_slice::from_bytes(remote.to_bytes()) != remote) fail("a remote slice changes on its way");
        static_cast<void>(fmt::format("{}", remote));
    }
}

void program::format() {
    std::string text = fmt::format("{} {} {} {} {} {} {}", device_, domain_, channels_[0],
                                   queues_[in_.below(queue_count)], srq_, way_, memory_->region());
    if (reactors_[0]) text += fmt::format("{}", reactors_[0]->stats());
    text += fmt::format("{} {} {}", static_cast<vb::async_event_kind>(in_.byte()),
                        static_cast<vb::access_flags>(in_.byte()), memory_->common(8));
    text += fmt::format("{} {} {}", static_cast<vb::completion_opcode>(in_.byte()),
                        static_cast<vb::async_element>(in_.below(8)), static_cast<vb::link_layer>(in_.below(4)));
    text += fmt::format("{}", vb::async_event{static_cast<vb::async_event_kind>(in_.byte()),
                                              static_cast<vb::async_element>(in_.below(7)), 1});
    const std::error_code status(static_cast<int>(in_.below(32)), vb::completion_category());
    text += status.message() + status.default_error_condition().message();
    text +=
        fmt::format("{}", vb::error(static_cast<vb::errc>(in_.byte() % 24), "format").with_note("of a fuzz target"));
    if (text.empty()) fail("nothing was printed");
}

void program::small_objects() {
    switch (in_.below(8)) {
    case 0: {
        auto opened = vb::context::open(in_.odd() ? "none" : name_);
        note(opened);
        note(vb::context::open_default());
        note(vb::context::list());
        break;
    }
    case 1: {
        const auto port = device_.port(in_.odd() ? in_.byte() : 1);
        note(port);
        if (port) static_cast<void>(fmt::format("{}", *port));
        const auto gids = device_.gids(in_.odd() ? in_.byte() : 1);
        note(gids);
        if (gids)
            for (const auto& gid : *gids) static_cast<void>(fmt::format("{}", gid));
        break;
    }
    case 2: {
        const auto bytes = in_.odd() ? std::span<std::byte>() : memory_->common(64).bytes();
        const auto made =
            vb::memory_region::register_memory(domain_, bytes, static_cast<vb::access_flags>(in_.byte() & 15));
        note(made);
        if (made) static_cast<void>(fmt::format("{}", *made));
        break;
    }
    case 3: note(vb::buffer_pool::create(domain_, in_.byte() % 5, in_.odd() ? ~std::size_t{0} : in_.byte())); break;
    case 4: {
        vb::address_vector address{.port = in_.odd() ? in_.byte() : std::uint8_t{1}};
        if (in_.byte() < 128) address.destination = vb::gid{};
        if (in_.odd()) address.lid = 5;
        static_cast<void>(fmt::format("{}", address));
        note(vb::address_handle::create(domain_, address));
        break;
    }
    case 5: {
        auto made = vb::shared_receive_queue::create(
            domain_, {.max_wr = in_.odd() ? in_.number<std::uint32_t>() : in_.between(0, 8),
                      .max_sge = in_.odd() ? in_.byte() : 1u,
                      .limit = in_.between(0, 4)});
        note(made);
        if (made) srq_ = std::move(made).value();
        break;
    }
    case 6:
        if (srq_) note(srq_.arm_limit(in_.between(0, 9)));
        break;
    default: {
        const auto channel = vb::completion_channel::create(in_.odd() ? vb::context() : device_);
        note(channel);
        note(vb::protection_domain::create(in_.odd() ? vb::context() : device_));
        break;
    }
    }
}

const std::array<program::step, 52> program::steps{
    &program::turns,
    &program::run_for,
    &program::device_acts,
    &program::send,
    &program::send_immediate,
    &program::send_datagram,
    &program::recv,
    &program::write,
    &program::read,
    &program::atomic,
    &program::chain,
    &program::flushed,
    &program::detached,
    &program::drain,
    &program::close,
    &program::destroy_pair,
    &program::create_pair,
    &program::connect_pair,
    &program::ask_pair,
    &program::create_inbox,
    &program::destroy_inbox,
    &program::next,
    &program::drop_messages,
    &program::streams,
    &program::next_event,
    &program::raise,
    &program::hold,
    &program::release,
    &program::fail_verb,
    &program::disturb,
    &program::remove,
    &program::resize,
    &program::attach_or_detach,
    &program::replace_queue,
    &program::by_hand,
    &program::parse,
    &program::format,
    &program::stop_scope,
    &program::destroy_scope,
    &program::join,
    &program::wait_for_child,
    &program::request_stop,
    &program::signals,
    &program::wait_for_signal,
    &program::wait_for_time,
    &program::wait_readable,
    &program::post_function,
    &program::both,
    &program::any,
    &program::points,
    &program::small_objects,
    &program::second_reactor,
};

// ---- The end.

/// Everything but the reactors goes; who waited must have gone on.
void program::end_orderly() {
    end_objects();
    event_.set();
    semaphore_.release(most_operations);
    static_cast<void>(::eventfd_write(signal_fd_, 1));
    for (auto& source : stops_) source.request_stop();
    // A reactor on epoll(7) looks at its descriptors in every 64th turn.
    for (int i = 0; i < 400 && (i < 8 || ended_ + abandoned_ < issued_); ++i) {
        for (auto& reactor : reactors_)
            if (reactor) {
                try {
                    note(reactor->poll());
                } catch (const thrown&) {}
            }
        control_.advance(milliseconds{1});
    }
    if (!unheard_ && issued_ != ended_ + abandoned_) {
        for (const ticket* t : open_) std::fprintf(stderr, "still waits: %s\n", t->what());
        fail("somebody waits although there is nothing left to wait for");
    }
    for (const auto& reactor : reactors_)
        if (reactor && reactor->stats().outstanding != 0) fail("operations are outstanding although nothing is left");
}

/// The latest first: who joins a scope is in a later one.
void program::end_scopes() {
    children_.clear();
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) s->reset();
}

void program::end_objects() {
    for (auto& inbox : inboxes_) inbox.reset();
    messages_.clear();
    for (auto& stream : streams_) stream.reset();
    for (auto& qp : pairs_) qp.reset();
    srq_ = {};
}

void program::balance() const {
    const auto l = control_.ledger();
    if (l.outstanding != 0 || l.unpolled != 0) fail("the device has something of objects that are gone");
    if (l.accepted != l.completed + l.flushed + l.silent + l.purged + l.dropped)
        fail("the device's ledger does not balance");
    if (issued_ != ended_ + abandoned_) fail("not every operation was resumed once or destroyed");
    if (pool_.available() != pool_.count()) fail("a pool buffer did not come back");
}

void program::run() {
    set_up();
    for (int left = most_steps; left > 0 && !in_.empty(); --left) (this->*in_.one_of(steps))();
    const auto order = style_ >> 6;
    control_.forgive();
    for (std::size_t i = 0; i < sim::point_count; ++i) control_.at(static_cast<sim::point>(i), {});
    control_.release();
    switch (order) {
    case 0:
    case 1:
        end_orderly();
        end_scopes();
        for (auto& reactor : reactors_) reactor.reset();
        break;
    case 2:
        end_scopes();
        end_objects();
        for (auto& reactor : reactors_) reactor.reset();
        break;
    default:
        for (auto& reactor : reactors_) reactor.reset();
        end_scopes();
        end_objects();
        break;
    }
    queues_ = {};
    channels_ = {};
    balance();
}

} // namespace

void run(std::span<const std::uint8_t> bytes) { program(bytes).run(); }

} // namespace fuzz
