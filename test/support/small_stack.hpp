#pragma once

#include <pthread.h>

#include <cstddef>
#include <stdexcept>

namespace support {

/// Calls `f` on a thread whose stack has 256 KiB: what recurses for every one of 10^6 turns does not come back.
template <class F>
void on_small_stack(F f) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{256} * 1024);
    pthread_t thread;
    const int failure = pthread_create(
        &thread, &attributes,
        [](void* argument) -> void* {
            (*static_cast<F*>(argument))();
            return nullptr;
        },
        &f);
    pthread_attr_destroy(&attributes);
    if (failure != 0) throw std::runtime_error("pthread_create failed");
    pthread_join(thread, nullptr);
}

} // namespace support
