#pragma once

/// @file
/// All but format.hpp, log.hpp, sim/ and mlx5/.

/// @namespace verbena
/// The runtime, and verbs as handles.

#include <verbena/async_event.hpp>
#include <verbena/event.hpp>
#include <verbena/reactor.hpp>
#include <verbena/receiver.hpp>
#include <verbena/scope.hpp>
#include <verbena/semaphore.hpp>
#include <verbena/task.hpp>
#include <verbena/verbs/address_handle.hpp>
#include <verbena/verbs/buffer_pool.hpp>
#include <verbena/verbs/completion_channel.hpp>
#include <verbena/verbs/completion_queue.hpp>
#include <verbena/verbs/context.hpp>
#include <verbena/verbs/memory_region.hpp>
#include <verbena/verbs/protection_domain.hpp>
#include <verbena/verbs/queue_pair.hpp>
#include <verbena/verbs/shared_receive_queue.hpp>
#include <verbena/verbs/work_request.hpp>
#include <verbena/when_all.hpp>
#include <verbena/when_any.hpp>
#include <verbena/with_timeout.hpp>
