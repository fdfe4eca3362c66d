#pragma once
#include "../light/python.h"
