#pragma once
#include "../light/tensor.h"
