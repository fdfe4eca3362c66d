#pragma once
#include "../../light/cuda.h"
