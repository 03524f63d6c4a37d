#pragma once

#include <verbena/detail/timer_queue.hpp> // public: timers live in awaiters, in coroutine frames
