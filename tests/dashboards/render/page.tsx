// Panels of a dashboard, drawn by Grafana's own code; `DASHBOARD` is what render.py has put into the page.
import { createTheme, dateTime, Field, FieldType, getDisplayProcessor, ThemeContext, toDataFrame } from "@grafana/data";
import { BigValue, TimeSeries } from "@grafana/ui";
import { Component, ReactNode } from "react";
import { createRoot } from "react-dom/client";

type Series = { name: string; times: number[]; values: Array<number | null> };
type Panel = { title: string; type: string; gridPos: Record<"x" | "y" | "w" | "h", number>; options: any; fieldConfig: any; series: Series[] };

declare const DASHBOARD: { title: string; panels: Panel[]; from: number; to: number };

const COLUMN = 64; // pixels of one of 24 columns
const ROW = 36;
const theme = createTheme({ colors: { mode: "light" } });

// One frame a series, with what Grafana's panel host adds to a field before a panel sees it.
function frameOf(series: Series, index: number, panel: Panel) {
  const defaults = panel.fieldConfig.defaults;
  const config = { color: { mode: "palette-classic" }, ...defaults, displayName: series.name };
  const frame = toDataFrame({
    fields: [
      { name: "time", type: FieldType.time, config: {}, values: series.times },
      { name: series.name, type: FieldType.number, config, values: series.values },
    ],
  });
  frame.fields[1].state = { seriesIndex: index }; // its colour
  for (const field of frame.fields) {
    field.display = getDisplayProcessor({ field: field as Field, theme, timeZone: "utc" });
  }
  return frame;
}

function Lines({ panel, width, height }: { panel: Panel; width: number; height: number }) {
  const [from, to] = [dateTime(DASHBOARD.from), dateTime(DASHBOARD.to)];
  const frames = panel.series.map((series, index) => frameOf(series, index, panel));
  const legend = { calcs: [], ...panel.options.legend };
  return <TimeSeries frames={frames} timeRange={{ from, to, raw: { from, to } }} timeZone="utc" {...{ width, height, legend }} />;
}

function Numbers({ panel, width, height }: { panel: Panel; width: number; height: number }) {
  const shown = panel.series.map((series, index) => {
    const [x, field] = frameOf(series, index, panel).fields;
    const value = field.display!(field.values[field.values.length - 1]);
    const { colorMode, graphMode, textMode } = panel.options;
    const size = { width: width / panel.series.length, height };
    return <BigValue key={series.name} value={{ ...value, title: series.name }} sparkline={{ x, y: field as Field }} {...{ ...size, theme, colorMode, graphMode, textMode }} />;
  });
  return <div style={{ display: "flex" }}>{shown}</div>;
}

const DRAWN: Record<string, typeof Lines> = { timeseries: Lines, stat: Numbers };

// A panel that throws says so where it stands; the others are drawn.
class Guarded extends Component<{ children: ReactNode }, { error?: Error }> {
  state: { error?: Error } = {};
  static getDerivedStateFromError = (error: Error) => ({ error });
  render = () => (this.state.error ? <pre className="error">{String(this.state.error.stack)}</pre> : this.props.children);
}

function Place({ panel }: { panel: Panel }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - 16, h * ROW - 40];
  const Drawn = DRAWN[panel.type];
  return (
    <section data-type={panel.type} style={{ position: "absolute", left: x * COLUMN, top: y * ROW, width, height: h * ROW }}>
      <h6 style={{ margin: "8px 4px" }}>{panel.title}</h6>
      {Drawn ? <Guarded><Drawn panel={panel} width={width} height={height} /></Guarded> : panel.type === "row" ? null : <i>{panel.type}: not in @grafana/ui</i>}
    </section>
  );
}

createRoot(document.getElementById("root")!).render(
  <ThemeContext.Provider value={theme}>
    {DASHBOARD.panels.map((panel, index) => <Place key={index} panel={panel} />)}
  </ThemeContext.Provider>,
);
