#pragma once

#define VERBENA_API __attribute__((visibility("default")))
