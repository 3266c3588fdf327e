# %% [markdown]
# # 01 Layouts by hand

# %%
import kdsl_core as kd

kd.Layout((4, 8), (8, 1))
