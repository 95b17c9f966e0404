// Dashboards as Grafana's own types, for what JSON can hold: the values of an enum stand for its members.
import type { Dashboard, FieldConfig, Panel, RowPanel } from "@grafana/schema";
import type * as Heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as Stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as States from "@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as Lines from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Json<T> = T extends string ? `${T}` : T extends object ? { [Key in keyof T]: Json<T[Key]> } : T;

// Grafana fills in what is left out, at every depth.
type Part<T> = T extends (infer One)[] ? Part<One>[] : T extends object ? { [Key in keyof T]?: Part<T[Key]> } : T;

type Typed<Type extends string, Options, Custom> = Omit<Json<Panel>, "type" | "options" | "fieldConfig"> & {
  type: Type;
  options: Part<Json<Options>>;
  fieldConfig: { defaults: Omit<Json<FieldConfig>, "custom"> & { custom?: Part<Json<Custom>> }; overrides: [] };
};

type OurPanel =
  | Json<RowPanel>
  | Typed<"heatmap", Heatmap.Options, Heatmap.FieldConfig>
  | Typed<"stat", Stat.Options, never>
  | Typed<"state-timeline", States.Options, States.FieldConfig>
  | Typed<"timeseries", Lines.Options, Lines.FieldConfig>;

export type OurDashboard = Omit<Json<Dashboard>, "panels"> & { panels: OurPanel[] };
