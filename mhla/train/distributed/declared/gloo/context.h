#pragma once

#include <gloo/declared.h>
