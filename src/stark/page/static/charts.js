// The curves of a run and the distribution of its times, drawn by ECharts.
"use strict";

// A chart that follows its box and the theme. make() returns ECharts' options.
stark.chart = (label, make, isShort = false) => {
  const element = stark.h("div", { class: isShort ? "chart short" : "chart", role: "img", "aria-label": label });
  let drawing = null;
  let width = 0;
  const draw = () => {
    width = element.clientWidth;
    if (!width) return;
    drawing ||= window.echarts.init(element, null, { renderer: "canvas" });
    drawing.resize();
    drawing.setOption({ animation: false, textStyle: { fontFamily: stark.colours().font }, ...make(stark.colours()) }, true);
  };
  const watcher = new ResizeObserver(() => element.clientWidth !== width && draw());
  watcher.observe(element);
  document.addEventListener("stark-theme", draw);
  return {
    element,
    draw,
    close: () => {
      watcher.disconnect();
      document.removeEventListener("stark-theme", draw);
      drawing?.dispose();
    },
  };
};

const axis = (style, more) => ({
  axisLine: { lineStyle: { color: style.edge } },
  axisTick: { show: false },
  axisLabel: { color: style.dim, fontSize: 11 },
  nameTextStyle: { color: style.dim, fontSize: 11 },
  splitLine: { lineStyle: { color: style.grid } },
  ...more,
});
const tooltip = (style, formatter) => ({
  trigger: "item",
  renderMode: "richText", // drawn, never markup
  confine: true,
  backgroundColor: style.card,
  borderColor: style.edge,
  textStyle: { color: style.text, fontSize: 12 },
  formatter,
});
const frame = { left: 56, right: 18, top: 32, bottom: 40 };

// Attempts in landing order with the best speed-up so far.
stark.progressOf = (run) => {
  const rootMs = run.nodes[0]?.ms;
  let best = null;
  return run.nodes.filter((row) => row.id !== 0).map((row, index) => {
    const speed = rootMs && row.ms ? rootMs / row.ms : null;
    if (speed !== null && (best === null || speed > best)) best = speed;
    return { row, attempt: index + 1, speed, best };
  });
};

stark.bestChart = (getRun) =>
  stark.chart("Best speed-up so far by attempt", (style) => {
    const points = stark.progressOf(getRun());
    const speeds = points.map((each) => each.speed).filter(Boolean);
    const isLog = speeds.length > 0 && Math.max(...speeds, 1) / Math.min(...speeds, 1) > 12;
    const low = isLog ? Math.min(1, ...speeds) * 0.7 : 0;
    const failed = points.filter((each) => each.speed === null);
    return {
      grid: frame,
      tooltip: tooltip(style, ({ data }) => (data.row ? stark.describeNode(data.row, getRun().nodes[0].ms) : "")),
      xAxis: axis(style, { type: "value", name: "attempt", nameLocation: "middle", nameGap: 26, min: 0, max: Math.max(1, points.length), minInterval: 1, splitLine: { show: false } }),
      yAxis: axis(style, { type: isLog ? "log" : "value", min: low, axisLabel: { color: style.dim, fontSize: 11, formatter: (value) => `${+value.toPrecision(2)}×` } }),
      series: [
        {
          type: "line", step: "end", symbol: "none", lineStyle: { color: style.accent, width: 2.5 }, areaStyle: { color: style.accent, opacity: 0.08, origin: "start" },
          data: points.filter((each) => each.best !== null).map((each) => [each.attempt, each.best]),
          markLine: { silent: true, symbol: "none", animation: false, label: { formatter: "eager", color: style.dim, fontSize: 11, position: "insideEndTop" }, lineStyle: { color: style.dim, type: "dashed" }, data: [{ yAxis: 1 }] },
        },
        { type: "scatter", symbolSize: 8, data: points.filter((each) => each.speed !== null).map((each) => {
          const kind = stark.kindOf(each.row, getRun().nodes[0].ms);
          return { value: [each.attempt, each.speed], row: each.row, symbol: kind === "slower" ? "emptyCircle" : "circle", itemStyle: { color: style[kind] } };
        }) },
        { type: "scatter", symbolSize: 7, data: failed.map((each) => ({ value: [each.attempt, isLog ? low * 1.05 : 0], row: each.row, symbol: "diamond", itemStyle: { color: style.compile_error } })) },
      ],
    };
  });

stark.costChart = (getRun) =>
  stark.chart("Cost by attempt", (style) => {
    const run = getRun();
    const isMoney = run.spent.usd !== null && run.spent.usd > 0;
    const isFree = !isMoney && !run.spent.tokens; // without an LLM, what it costs is the time of the judge
    let sum = 0;
    const made = isFree ? run.nodes.slice(1).map((row) => row.seconds) : run.costs.map(([, tokens, usd]) => (isMoney ? usd : tokens));
    const data = [[0, 0], ...made.map((each, index) => [index + 1, (sum += each)])];
    const format = isMoney ? (value) => `$${+value.toPrecision(3)}` : isFree ? stark.format.seconds : stark.format.tokens;
    return {
      grid: frame,
      tooltip: { ...tooltip(style, ([first]) => `${first.value[0]} attempts: ${format(first.value[1])}`), trigger: "axis" },
      xAxis: axis(style, { type: "value", name: "attempt", nameLocation: "middle", nameGap: 26, min: 0, max: Math.max(1, data.length - 1), minInterval: 1, splitLine: { show: false } }),
      yAxis: axis(style, { type: "value", min: 0, name: isMoney ? "dollars" : isFree ? "time of the judge" : "tokens", nameLocation: "end", nameGap: 14, axisLabel: { color: style.dim, fontSize: 11, formatter: format } }),
      series: [{ type: "line", step: "end", symbol: "none", data, lineStyle: { color: style.rejected, width: 2.5 }, areaStyle: { color: style.rejected, opacity: 0.08 } }],
    };
  });

// One row of dots for each timing, with its median: this node against the baselines.
stark.timingChart = (timings) => {
  const chart = stark.chart("Distribution of the times", (style) => {
    const most = timings.length - 1;
    const all = timings.flatMap((each) => each.samples_ms).sort((one, other) => one - other);
    const isLog = all[all.length - 1] / all[0] > 12;
    const dots = timings.flatMap((each, index) =>
      each.samples_ms.map((value, number) => ({ value: [value, most - index + (((number * 0.618) % 1) - 0.5) * 0.5], itemStyle: { color: index ? style.dim : style.accent } })));
    return {
      grid: { left: 16, right: 24, top: 6, bottom: 40 },
      tooltip: tooltip(style, ({ value }) => stark.format.ms(value[0])),
      xAxis: axis(style, { type: isLog ? "log" : "value", scale: true, axisLine: { onZero: false, lineStyle: { color: style.edge } }, name: "milliseconds per call", nameLocation: "middle", nameGap: 26 }),
      yAxis: axis(style, { type: "value", min: -0.6, max: most + 0.75, interval: 1, axisLabel: { show: false }, splitLine: { show: false }, axisLine: { show: false } }),
      series: [
        { type: "scatter", symbolSize: 5, data: dots, itemStyle: { opacity: 0.4 }, silent: false },
        { type: "scatter", symbol: "rect", symbolSize: [3, 24], silent: true, data: timings.map((each, index) => ({ value: [each.median_ms, most - index], itemStyle: { color: style.text },
          label: { show: true, position: "top", distance: 3, align: each.median_ms > all[0] + (all[all.length - 1] - all[0]) * 0.6 ? "right" : "left", formatter: `${each.name}  ${stark.format.ms(each.median_ms)}`, color: style.text, fontSize: 11, fontWeight: 600 } })) },
      ],
    };
  });
  chart.element.style.height = `${60 + 56 * timings.length}px`;
  return chart;
};
